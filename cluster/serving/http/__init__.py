"""The HTTP application: routes, middleware, API keys and pages, over any backend that decodes."""
