"""As a dict."""
def smallest_leak():
    return dict(window=1, block=2, keys=2, queries=1)
