//! Leader election between replicas in separate processes, on an API server. The replicas are
//! killed, cut off, frozen and stopped while they lead.

mod handovers;
mod lease;
mod replica;
mod report;
