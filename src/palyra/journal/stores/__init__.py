"""One store per noun: functions over a connection."""
