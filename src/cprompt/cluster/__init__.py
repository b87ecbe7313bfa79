"""Past one process: many runs and many photos on Ray.

Ray schedules, retries and moves data; this room says what the tasks are and puts their results
together. Only `connection` imports Ray, and only when it is asked to connect.
"""
