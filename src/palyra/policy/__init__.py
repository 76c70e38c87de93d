"""May this be done? Cedar policies, the risk of a call, and what earlier answers are good for."""
