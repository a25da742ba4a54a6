"""``nmt report``: what training measured, as a page, as charts, and as data."""
