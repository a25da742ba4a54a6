"""``nmt serve``: translation over HTTP."""
