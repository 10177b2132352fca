//! Shard groups (draft).
#![allow(dead_code)]
mod assignment;
mod balance;
mod group;
mod members;
#[cfg(test)]
mod tests;
