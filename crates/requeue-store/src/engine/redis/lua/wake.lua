-- Wakes a waiting process.
wake()
