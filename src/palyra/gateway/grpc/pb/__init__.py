"""Generated from proto/ by scripts/proto."""
