//! Backoff and jitter, as in apimachinery's `wait`.
