//! Encodes adds as arguments of SQL functions, and adds keys in a transaction of the caller.

use std::collections::HashSet;
use std::error::Error;

use tokio_postgres::types::{FromSql, Type};
use tokio_postgres::{GenericClient, Row};

use super::params::with_types;
use super::values::how_to_add;
use crate::engine::time::micros;
use crate::types::add::{Add, Added};
use crate::types::key::Key;

/// A batch of adds of different keys, sorted by key. The server returns the answers in the same order.
pub(super) struct Batch<'a> {
    /// The position that each add had before the batch was sorted.
    pub(super) order: Vec<usize>,
    pub(super) keys: Vec<&'a [u8]>,
    pub(super) afters: Vec<i64>,
    pub(super) hows: Vec<i16>,
    pub(super) priorities: Vec<i16>,
    pub(super) flags: Vec<i32>,
    /// The longest wait of each debounced add. The vector is empty if no add is debounced.
    pub(super) mosts: Vec<Option<i64>>,
}

impl<'a> Batch<'a> {
    pub(super) fn new(adds: impl Iterator<Item = (&'a [u8], Add)>) -> Self {
        let mut adds: Vec<(usize, (&[u8], Add))> = adds.enumerate().collect();
        // All transactions lock keys in this order. Transactions that lock the same keys in different orders can
        // deadlock.
        adds.sort_unstable_by_key(|&(_, (key, _))| key);
        let mosts = adds.iter().map(|(_, (_, add))| add.longest_wait().map(micros));
        let mosts =
            if mosts.clone().any(|most| most.is_some()) { mosts.collect() } else { Vec::new() };
        Self {
            order: adds.iter().map(|&(n, _)| n).collect(),
            keys: adds.iter().map(|&(_, (key, _))| key).collect(),
            afters: adds.iter().map(|(_, (_, add))| micros(add.after)).collect(),
            hows: adds.iter().map(|&(_, (_, add))| how_to_add(add)).collect(),
            priorities: adds.iter().map(|(_, (_, add))| add.priority.number().into()).collect(),
            flags: adds.iter().map(|(_, (_, add))| add.flags.cast_signed()).collect(),
            mosts,
        }
    }

    /// Returns the answers in the order that the adds had before the batch was sorted. The answer is `None` for a key
    /// that another transaction has locked.
    pub(super) fn read_answers(
        &self,
        row: &Row,
    ) -> Result<Vec<Option<Added>>, tokio_postgres::Error> {
        let answers: Vec<Answer> = row.try_get(0)?;
        let mut added = vec![None; self.order.len()];
        for (&n, Answer(answer)) in self.order.iter().zip(answers) {
            added[n] = answer;
        }
        Ok(added)
    }
}

/// An answer to an add. The server encodes the answer as its index in `requeue.answers`.
struct Answer(Option<Added>);

impl<'a> FromSql<'a> for Answer {
    fn from_sql(sql_type: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let added = match i16::from_sql(sql_type, raw)? {
            0 => Added::New,
            1 => Added::Coalesced,
            2 => Added::Dirty,
            3 => Added::BackingOff,
            4 => Added::Parked,
            5 => return Ok(Self(None)),
            6 => Added::Revived,
            other => return Err(format!("this version does not know the answer {other}").into()),
        };
        Ok(Self(Some(added)))
    }

    fn accepts(sql_type: &Type) -> bool {
        <i16 as FromSql>::accepts(sql_type)
    }
}

/// Adds keys to a queue in a transaction of the caller. The adds take effect when the caller commits the transaction,
/// together with its other changes. The answers are in the order of the adds. A key that occurs several times is added
/// several times.
///
/// The queue must exist. `client` is a transaction of tokio-postgres 0.7, or a client whose statements commit
/// immediately. Programs with another driver call [the SQL
/// functions](crate::engine::postgres#adds-in-a-transaction-of-the-caller).
///
/// The keys stay locked until the transaction ends. If another transaction has locked a key, the call waits as long as
/// the session's `lock_timeout` permits. The statement is not prepared, so it also works through a pooler.
///
/// ```no_run
/// use requeue_store::Add;
/// use requeue_store::postgres::add_in;
///
/// # async fn pay(mut client: tokio_postgres::Client) -> Result<(), tokio_postgres::Error> {
/// let transaction = client.transaction().await?;
/// transaction.execute("update invoices set paid = true where id = 17", &[]).await?;
/// add_in(&transaction, "mail", [("invoice/17", Add::now())]).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// Returns an error if the queue does not exist (SQLSTATE 42704) or is dropped during the call (RQ001), or if a key is
/// longer than 2,048 bytes (54000). Also returns an error if the server refuses the statement or cannot be reached.
/// After any error, the transaction can only be rolled back.
///
/// # Cancel safety
///
/// If the future is dropped, the server may still run the statement. Roll the transaction back.
pub async fn add_in<C, K>(
    client: &C,
    queue: &str,
    adds: impl IntoIterator<Item = (K, Add)>,
) -> Result<Vec<Added>, tokio_postgres::Error>
where
    C: GenericClient + Sync,
    K: Into<Key>,
{
    add_with_group(client, queue, None, adds).await
}

/// Adds keys to a group, as [`add_in`] does, in a queue with [groups](crate::GroupBy). A key that is already in the
/// queue stays in its group.
///
/// If a pattern extracts the groups of the queue, the caller must name the group that the pattern extracts. Neither
/// this function nor the server evaluates the pattern.
///
/// # Errors
///
/// Returns the errors of [`add_in`]. Also returns an error if the queue has no groups, or if the name of the group has
/// control characters (22023) or is longer than 100 bytes (54000).
///
/// # Cancel safety
///
/// The behaviour is the same as that of [`add_in`].
pub async fn add_in_group<C, K>(
    client: &C,
    queue: &str,
    group: &str,
    adds: impl IntoIterator<Item = (K, Add)>,
) -> Result<Vec<Added>, tokio_postgres::Error>
where
    C: GenericClient + Sync,
    K: Into<Key>,
{
    add_with_group(client, queue, Some(group), adds).await
}

async fn add_with_group<C, K>(
    client: &C,
    queue: &str,
    group: Option<&str>,
    adds: impl IntoIterator<Item = (K, Add)>,
) -> Result<Vec<Added>, tokio_postgres::Error>
where
    C: GenericClient + Sync,
    K: Into<Key>,
{
    let adds: Vec<(Key, Add)> = adds.into_iter().map(|(key, add)| (key.into(), add)).collect();
    let mut added = vec![None; adds.len()];
    let mut left: Vec<usize> = (0..adds.len()).collect();
    while !left.is_empty() {
        // The adds are split into batches, because no batch may contain a key twice.
        let mut different = HashSet::new();
        let (batch, again): (Vec<usize>, Vec<usize>) =
            left.into_iter().partition(|&n| different.insert(&adds[n].0));
        let asked = Batch::new(batch.iter().map(|&n| (&*adds[n].0, adds[n].1)));
        let Batch { keys, afters, hows, priorities, flags, mosts, .. } = &asked;
        let sql = "select requeue.add_each($1, $2, $3, $4, $5, $6, $7, $8)";
        let groups: Vec<&str> = group.map(|group| vec![group; keys.len()]).unwrap_or_default();
        let params = with_types(&[&queue, keys, afters, hows, priorities, flags, mosts, &groups]);
        // The statement is not prepared, because a pooler may run the next statement in another session.
        let row = client.query_typed_one(sql, &params).await?;
        for (n, answer) in batch.into_iter().zip(asked.read_answers(&row)?) {
            added[n] = answer;
        }
        left = again;
    }
    // The function waits for locks, so no answer is `None`.
    Ok(added.into_iter().flatten().collect())
}
