//! The requests about the groups of a queue in a store: the list, and the actions.

use std::cmp::Ordering;
use std::sync::Arc;

use axum::extract::{RawQuery, Request, State};
use axum::response::Response;

use crate::actions::{Log, check_token, rate_target, read_body, record};
use crate::api::{
    Group, GroupAction, GroupChange, GroupChanged, GroupList, Held, Named, WaitCause,
};
use crate::operators::group_target;
use crate::params::{Problem, json};
use crate::source::{Selected, TableQuery, no_groups};
use crate::state::SiteState;

/// The maximum number of groups that one request reads, and the largest value of
/// `limit`.
pub(crate) const MOST_GROUPS: usize = 10_000;

type Site = State<Arc<SiteState>>;

/// A column by which the list of groups can be sorted, with its name in the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GroupColumn {
    Name,
    Ready,
    Waiting,
    Running,
    Oldest,
}

impl Named for GroupColumn {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("name", Self::Name),
        ("ready", Self::Ready),
        ("waiting", Self::Waiting),
        ("running", Self::Running),
        ("oldest", Self::Oldest),
    ];
}

impl GroupColumn {
    fn compare(self, a: &Group, b: &Group) -> Ordering {
        match self {
            Self::Name => a.name.cmp(&b.name),
            Self::Ready => a.ready.cmp(&b.ready),
            Self::Waiting => a.waiting.cmp(&b.waiting),
            Self::Running => a.running.cmp(&b.running),
            Self::Oldest => a.oldest.unwrap_or(0.0).total_cmp(&b.oldest.unwrap_or(0.0)),
        }
    }
}

impl Held {
    fn of_groups(groups: &[Group]) -> Self {
        let mut held = Self::default();
        for group in groups.iter().filter(|group| group.ready > 0) {
            let wait = match group.hold {
                Some(WaitCause::GroupPaused) => &mut held.paused,
                Some(WaitCause::GroupLimit) => &mut held.limit,
                Some(_) => &mut held.rate,
                None => continue,
            };
            wait.keys += group.ready;
            wait.groups += 1;
            let oldest = group.oldest.unwrap_or_default();
            if wait.oldest.is_none_or(|other| oldest > other) {
                (wait.oldest, wait.group) = (Some(oldest), Some(group.name.clone()));
            }
        }
        held
    }
}

/// Returns the groups, sorted by name or by another column.
pub(crate) async fn list_groups(
    State(site): Site,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    // The request waits for its turn, because the store reads all keys of the groups.
    let _turn = site.take_turn().await?;
    let query = TableQuery::<GroupColumn>::parse(query.as_deref(), MOST_GROUPS)?;
    let read = site.source.read_groups(MOST_GROUPS).await?;
    let held = Held::of_groups(&read);
    let compare = |column: &GroupColumn, a: &_, b: &_| column.compare(a, b);
    let Selected { rows: groups, looked_at, more } =
        query.select(read, MOST_GROUPS, |group| &group.name, compare);
    Ok(json(&GroupList { groups, held, looked_at, more }))
}

/// Changes a setting of a group, or cancels the pending runs of its keys.
pub(crate) async fn change_group(
    State(site): Site,
    request: Request,
    action: GroupAction,
) -> Result<Response, Problem> {
    let remote = check_token(&site, &request)?;
    let (change, operator) = read_body::<GroupChange>(request, remote).await?;
    check_change(action, &change)?;
    if !site.source.has_groups() {
        return Err(no_groups());
    }
    let group = change.group.clone();
    if action == GroupAction::Cancel {
        // The request waits for its turn, because the store reads all keys of the
        // queue.
        let _turn = site.take_turn().await?;
        let log = Log::new(remote, action.name()).recorded_as(&site, operator);
        let group = group.unwrap_or_default();
        let cancelled = log.cancel_group(&*site.source, group, change.state).await?;
        return Ok(json(&GroupChanged { cancelled }));
    }
    let target = change_target(action, &change);
    Log::new(remote, action.name()).run_one(site.source.change_group(action, change)).await?;
    tracing::info!(%remote, group, "{}", action.name());
    record(&site, operator, action.name(), Some(target)).await;
    Ok(json(&GroupChanged { cancelled: 0 }))
}

/// Returns the name of the group, and the new value of the changed setting, as text.
fn change_target(action: GroupAction, change: &GroupChange) -> String {
    let group = group_target(change.group.as_deref());
    let number = |number: Option<u32>| number.map_or("none".to_owned(), |n| n.to_string());
    match action {
        GroupAction::Limit => format!("{group}: {}", number(change.limit.flatten())),
        GroupAction::Weight => format!("{group}: {}", number(change.weight)),
        GroupAction::Rate => format!("{group}: {}", rate_target(change.rate.flatten())),
        GroupAction::Pause | GroupAction::Resume | GroupAction::Cancel => group.to_owned(),
    }
}

/// Returns an error if the request contains a field that the action does not use, or
/// lacks a field that the action requires.
fn check_change(action: GroupAction, change: &GroupChange) -> Result<(), Problem> {
    let GroupChange { group, limit, weight, rate, state } = change;
    if group.is_none() && action != GroupAction::Limit {
        return Err(Problem::parameter("group", "missing; pass the name of a group"));
    }
    for (name, is_there, of, needed) in [
        (
            "limit",
            limit.is_some(),
            GroupAction::Limit,
            "a number from 1, or null to remove the limit",
        ),
        ("weight", weight.is_some(), GroupAction::Weight, "a number from 1"),
        ("rate", rate.is_some(), GroupAction::Rate, "a rate, or null to remove the rate"),
        ("state", state.is_some(), GroupAction::Cancel, ""),
    ] {
        if is_there && action != of {
            return Err(Problem::parameter(name, &format!("only for {}", of.name())));
        }
        if !is_there && action == of && !needed.is_empty() {
            return Err(Problem::parameter(name, &format!("missing; pass {needed}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Wait;

    #[test]
    fn ready_keys_are_held_by_the_cause_of_their_group() {
        let group = |ready: u64, oldest, hold| Group {
            name: format!("g{ready}"),
            ready,
            waiting: 5,
            running: 1,
            dirty: 0,
            parked: 0,
            oldest,
            limit: Some(2),
            rate: None,
            weight: 1,
            paused: false,
            hold,
        };
        let held = Held::of_groups(&[
            group(3, Some(4.0), Some(WaitCause::GroupPaused)),
            group(4, Some(7.0), Some(WaitCause::GroupLimit)),
            group(5, Some(3.0), Some(WaitCause::GroupLimit)),
            group(6, Some(9.0), Some(WaitCause::Rate)),
            group(7, Some(9.0), None),
            group(0, None, Some(WaitCause::GroupPaused)),
        ]);
        let wait = |keys, oldest, groups, group: &str| Wait {
            keys,
            oldest: Some(oldest),
            groups,
            group: Some(group.to_owned()),
        };
        let (paused, rate) = (wait(3, 4.0, 1, "g3"), wait(6, 9.0, 1, "g6"));
        assert_eq!(held, Held { paused, limit: wait(9, 7.0, 2, "g4"), rate });
    }

    #[test]
    fn a_change_has_the_fields_of_its_action_only() {
        let group = || Some("acme".to_owned());
        let of =
            |group, limit, weight| GroupChange { group, limit, weight, ..GroupChange::default() };
        for (action, change, is_valid) in [
            (GroupAction::Pause, of(group(), None, None), true),
            (GroupAction::Pause, of(None, None, None), false),
            (GroupAction::Pause, of(group(), Some(Some(1)), None), false),
            (GroupAction::Pause, of(group(), Some(None), None), false),
            (GroupAction::Limit, of(None, Some(Some(1)), None), true),
            (GroupAction::Limit, of(group(), Some(None), None), true),
            (GroupAction::Limit, of(group(), None, None), false),
            (GroupAction::Limit, of(group(), Some(None), Some(1)), false),
            (GroupAction::Rate, GroupChange { rate: Some(None), ..of(group(), None, None) }, true),
            (GroupAction::Rate, of(group(), None, None), false),
            (GroupAction::Rate, of(None, None, None), false),
            (GroupAction::Rate, of(group(), None, Some(1)), false),
            (GroupAction::Weight, of(group(), None, Some(1)), true),
            (GroupAction::Weight, of(group(), None, None), false),
        ] {
            assert_eq!(check_change(action, &change).is_ok(), is_valid, "{action:?} {change:?}");
        }
    }
}
