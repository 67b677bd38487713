"""REST: the front, the routes to calls, and the forms of bodies, answers and errors."""
