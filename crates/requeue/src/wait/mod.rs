//! Loops that wait, as in apimachinery's `wait`.
