//! Kubernetes controllers on kube-rs that back off, order and show themselves.
