"""The composition root: builds every part, starts them in order, stops them in the opposite one."""
