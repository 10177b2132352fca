//! Leader election between replicas in their own processes, against an API server. They are
//! killed, cut off, frozen and stopped while they lead.

mod handovers;
mod lease;
mod replica;
mod report;
