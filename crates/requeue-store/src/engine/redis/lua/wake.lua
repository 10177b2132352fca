-- Wakes the waiting processes.
wake()
