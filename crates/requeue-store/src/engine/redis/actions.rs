//! Stores the actions of operators on a queue. Each action is an element of a list, with one text per line. The texts
//! contain no control characters.

use super::Redis;
use super::activity::activity_call;
use super::values::Values;
use crate::engine::Place;
use crate::engine::time::{Micros, until};
use crate::types::action::ActionRecord;
use crate::types::error::Answer;

impl Redis {
    pub(super) async fn store_action(&self, queue: &Place, action: ActionRecord) -> Answer<()> {
        let (mut command, slot) = activity_call(&self.nodes.scripts.record_action, queue);
        let ActionRecord { ago: _, action, by, target, note } = action;
        command.arg([action, by, target, note].join("\n"));
        self.run_on_record(queue, slot, &command).await.map(drop)
    }

    pub(super) async fn read_actions(&self, queue: &Place) -> Answer<Vec<ActionRecord>> {
        let (command, slot) = activity_call(&self.nodes.scripts.last_actions, queue);
        let mut answer = Values::from_array(self.run_on_record(queue, slot, &command).await?)?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let now = text(answer.bytes()?).parse().unwrap_or_default();
        let mut actions = Vec::new();
        while !answer.is_empty() {
            // Elements that another program has damaged are skipped.
            actions.extend(decode_action(&text(answer.bytes()?), now));
        }
        Ok(actions)
    }
}

fn decode_action(element: &str, now: Micros) -> Option<ActionRecord> {
    let mut lines = element.split('\n');
    let ago = until(lines.next()?.parse().ok()?, now);
    let mut text = || lines.next().map(str::to_owned);
    Some(ActionRecord { ago, action: text()?, by: text()?, target: text()?, note: text()? })
}
