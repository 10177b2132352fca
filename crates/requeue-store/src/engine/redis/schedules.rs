//! Stores the schedules of a queue. Each shard has the schedules of its keys, so that one script can fire a schedule
//! and add its key.

use std::collections::BTreeMap;

use redis::Value;

use super::names::Shard;
use super::values::{self, Values};
use super::{Redis, hold_flag};
use crate::engine::Place;
use crate::engine::schedules::{Agenda, Firing, Scheduled};
use crate::engine::time::Micros;
use crate::types::error::Answer;
use crate::types::key::Key;

impl Redis {
    pub(super) async fn store_schedule(
        &self,
        queue: &Place,
        schedule: Scheduled,
    ) -> Answer<Agenda> {
        let Scheduled { key, spec, zone, priority, group, .. } = schedule;
        let (shards, number) = self.shard_with(queue, &key)?;
        let mut command = self.nodes.scripts.put_schedule.on_schedules(&shards[number]);
        command.arg(&*key).arg(spec).arg(zone).arg(priority.number());
        command.arg(marked(group.as_deref()));
        read_agenda(self.run_script(&shards[number], &command).await?)
    }

    /// Removes, pauses or resumes a schedule.
    pub(super) async fn change_schedule(
        &self,
        queue: &Place,
        key: &Key,
        change: &str,
    ) -> Answer<bool> {
        let (shards, number) = self.shard_with(queue, key)?;
        let mut command = self.nodes.scripts.change_schedule.on_schedules(&shards[number]);
        command.arg(&**key).arg(change);
        Ok(values::number(self.run_script(&shards[number], &command).await?)? == 1)
    }

    pub(super) async fn scan_schedules(
        &self,
        queue: &Place,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Agenda>> {
        let mut agendas = Vec::new();
        for shard in &*self.shards_of(queue)? {
            let (now, found) = self.scan_shard_schedules(shard).await?;
            let page =
                found.into_values().filter(|found| after.is_none_or(|after| found.key > *after));
            agendas.push(Agenda { now, schedules: page.take(limit).collect() });
        }
        Ok(agendas)
    }

    async fn scan_shard_schedules(
        &self,
        shard: &Shard,
    ) -> Answer<(Micros, BTreeMap<Key, Scheduled>)> {
        let (mut cursor, mut found) = (b"0".to_vec(), BTreeMap::new());
        loop {
            let mut command = self.nodes.scripts.scan_schedules.on_schedules(shard);
            command.arg(&cursor);
            let mut step = Values::from_array(self.run_script(shard, &command).await?)?;
            cursor = step.bytes()?;
            let now = step.number()?;
            while !step.is_empty() {
                let schedule = read_schedule(&mut step)?;
                found.insert(schedule.key.clone(), schedule);
            }
            if cursor == b"0" {
                return Ok((now, found));
            }
        }
    }

    pub(super) async fn read_next_schedules(
        &self,
        queue: &Place,
        shard: usize,
        limit: usize,
    ) -> Answer<Agenda> {
        let shards = self.shards_of(queue)?;
        let shard = &shards[shard];
        let mut command = self.nodes.scripts.next_schedules.on_schedules(shard);
        command.arg(limit);
        let mut found = Values::from_array(self.run_script(shard, &command).await?)?;
        let has_standing = found.is_true()?;
        // A queue with several shards cannot have a rate.
        if !has_standing && shards.len() == 1 {
            self.restore_rate(shard).await?;
        }
        read_agenda(found.next_value()?)
    }

    pub(super) async fn find_schedule(&self, queue: &Place, key: &Key) -> Answer<Agenda> {
        let (shards, number) = self.shard_with(queue, key)?;
        let mut command = self.nodes.scripts.look_up_schedule.on_schedules(&shards[number]);
        command.arg(&**key);
        read_agenda(self.run_script(&shards[number], &command).await?)
    }

    pub(super) async fn fire_stored(
        &self,
        queue: &Place,
        was: &Scheduled,
        firing: Firing,
    ) -> Answer<bool> {
        let (shards, number) = self.shard_with(queue, &was.key)?;
        let mut command = self.nodes.scripts.fire_schedule.on_schedules(&shards[number]);
        command.arg(&*was.key).arg(&was.spec).arg(&was.zone);
        command.arg(was.next_at).arg(u8::from(was.is_new));
        match firing {
            Firing::Next(next_at) => command.arg(next_at.min(LATEST)).arg(""),
            Firing::Refused(why) => command.arg("").arg(marked(Some(&why))),
        };
        command.arg(hold_flag(queue));
        values::push_add(&mut command, &was.to_ask(), queue);
        Ok(values::number(self.run_script(&shards[number], &command).await?)? == 1)
    }
}

/// The latest time of a schedule. `NEVER` in shard.lua is greater, because it means that there is no time.
const LATEST: Micros = (1 << 53) - 2;

/// Encodes a text that may be missing: after a dot, or as an empty text.
fn marked(text: Option<&str>) -> String {
    text.map(|text| format!(".{text}")).unwrap_or_default()
}

/// Reads the time of the server, and the schedules that follow.
fn read_agenda(answer: Value) -> Answer<Agenda> {
    let mut found = Values::from_array(answer)?;
    let (now, mut schedules) = (found.number()?, Vec::new());
    while !found.is_empty() {
        schedules.push(read_schedule(&mut found)?);
    }
    Ok(Agenda { now, schedules })
}

/// Reads a schedule in the form in which `append_schedule` has written it.
fn read_schedule(values: &mut Values) -> Answer<Scheduled> {
    let key = values.bytes()?.into();
    let mut text =
        || -> Answer<String> { Ok(String::from_utf8_lossy(&values.bytes()?).into_owned()) };
    let (spec, zone) = (text()?, text()?);
    let priority: i32 = text()?.parse().unwrap_or(0);
    let group = text()?.strip_prefix('.').map(Into::into);
    let next_at = text()?.parse().unwrap_or(LATEST);
    let (is_new, is_paused) = (text()? == "1", text()? == "1");
    let error = text()?.strip_prefix('.').map(str::to_owned);
    let priority = priority.into();
    Ok(Scheduled { key, spec, zone, priority, group, next_at, is_new, is_paused, error })
}
