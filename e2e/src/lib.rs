//! A Kubernetes API server of its own for each test that asks for one.
