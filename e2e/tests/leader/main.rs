//! Leader election by replicas that are processes, against an API server: they are killed, cut off,
//! frozen and stopped while they lead.

mod handovers;
mod lease;
mod replica;
mod report;
