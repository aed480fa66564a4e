"""The retriever as a service over HTTP."""
