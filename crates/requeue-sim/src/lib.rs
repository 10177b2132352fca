//! Models of the queue, written to be obviously right, and what compares the queue with them.
