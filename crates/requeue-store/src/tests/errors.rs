//! Tests the texts and the sources of errors.

use std::collections::BTreeSet;
use std::error::Error;

use super::*;
use crate::types::error::*;
use crate::types::inspect::StateCounts;

/// Returns errors of each public type, one for each way in which the type is created.
fn all() -> Vec<(&'static str, Box<dyn Error>)> {
    let fault = || EngineError::absent("connection refused");
    vec![
        (
            "ConnectError",
            Box::new(ConnectError::new("sqlite: the file name is missing, as in sqlite:jobs.db")),
        ),
        ("ConnectError", Box::new(ConnectError::from_engine("redis://h:1", fault()))),
        (
            "MigrateError",
            Box::new(MigrateError::from_engine("the schema was not created or updated", fault())),
        ),
        (
            "OpenError",
            Box::new(OpenError(Failed::invalid("queue \"\": invalid name: use 1 to 200 bytes"))),
        ),
        ("OpenError", Box::new(OpenError(Failed::missing("mial", &["mail".to_owned()])))),
        ("OpenError", Box::new(OpenError::from_engine("the queue \"q\" can't be opened", fault()))),
        ("UpdateError", Box::new(UpdateError(Failed::has_keys("mail", StateCounts::default(), 1)))),
        ("UpdateError", Box::new(UpdateError(Failed::missing("mial", &["mail".to_owned()])))),
        (
            "UpdateError",
            Box::new(UpdateError::from_engine("queue \"mail\" was not dropped", fault())),
        ),
        ("ReadError", Box::new(ReadError::from_engine("the keys were not counted", fault()))),
        ("UpdateError", Box::new(UpdateError::from_engine("the key was not revived", fault()))),
        ("AddError", Box::new(AddError(Failed::invalid("a key of 3000 bytes")))),
        ("AddError", Box::new(AddError::from_engine("the key was not added", fault()))),
        ("CompleteError", Box::new(CompleteError::Lost)),
        ("CompleteError", Box::new(CompleteError::Unsure)),
        ("CompleteError", Box::new(CompleteError::Dropped)),
        ("CompleteError", Box::new(CompleteError::Unreachable("connection refused".into()))),
    ]
}

#[test]
fn a_drop_that_is_refused_names_damaged_keys_if_there_are_any() {
    let mut counts = StateCounts { ready: 2, ..StateCounts::default() };
    for (damaged, end) in [(0, "0 parked)"), (3, "0 parked, 3 damaged)")] {
        counts.damaged = damaged;
        let said = UpdateError(Failed::has_keys("mail", counts, 0)).to_string();
        assert!(said.ends_with(&format!("(2 ready, 0 waiting, 0 in flight, {end}")), "{said}");
    }
}

#[test]
fn an_error_of_a_change_says_whether_it_may_have_happened() {
    let lost = || EngineError::unsure("the connection was closed");
    let absent = || EngineError::absent("the connection was refused");
    let update = |fault| {
        let error = UpdateError::from_engine("the key was not revived", fault);
        (error.to_string(), error.may_have_happened())
    };
    let migrate = |fault| {
        let error = MigrateError::from_engine("the schema was not created or updated", fault);
        let said = error.to_string();
        (said.clone(), said.contains("may have taken effect"))
    };
    let drop = |fault| {
        let error = UpdateError::from_engine("queue \"q\" was not dropped", fault);
        (error.to_string(), error.may_have_happened())
    };
    // A second cancel, revive or drop may also affect a later add.
    for (unsure, sure, advice) in [
        (update(lost()), update(absent()), "check before you repeat it"),
        (migrate(lost()), migrate(absent()), "repeating it is harmless"),
        (drop(lost()), drop(absent()), "check before you repeat it"),
    ] {
        let expected = format!("{} (the change may have taken effect; {advice})", sure.0);
        assert_eq!((unsure, sure.1), ((expected, true), false));
    }
    // A read changes nothing.
    let error = ReadError::from_engine("the keys were not counted", lost());
    assert_eq!(error.to_string(), "the keys were not counted");
}

/// The first transaction changes 1,000 keys, and a second transaction changes the last key.
#[tokio::test(start_paused = true)]
async fn a_change_that_fails_after_its_first_part_may_have_happened() {
    let keys = || (0..1001).map(|n| format!("{n:04}"));
    for (mishap, is_temporary) in [
        (Mishap::Absent, true),
        (Mishap::Lost, true),
        (Mishap::Unheard, true),
        (Mishap::Refused, false),
    ] {
        let (engine, queue) = queue();
        queue.add_all(keys()).await.expect("added");
        engine.fail([Mishap::Fine, mishap]);
        let error = queue.cancel_keys(keys()).await.expect_err("the second part fails");
        assert!(error.may_have_happened(), "{mishap:?}");
        assert_eq!(error.kind().is_temporary(), is_temporary, "{mishap:?}");
        assert!(queue.counts().await.expect("counted").ready <= 1, "{mishap:?}");
        // There is only one transaction, so no other part was changed.
        engine.fail([mishap]);
        let error = queue.cancel_keys(["1000"]).await.expect_err("the only part fails");
        let is_unsure = matches!(mishap, Mishap::Lost | Mishap::Unheard);
        assert_eq!(error.may_have_happened(), is_unsure, "{mishap:?}");
        assert_eq!(error.kind().is_temporary(), is_temporary, "{mishap:?}");
    }
    // A locked key is changed after the other keys.
    for locked in ["a", "b"] {
        let (engine, queue) = queue();
        queue.add_all(["a", "b"]).await.expect("added");
        engine.set_locked(locked, true);
        let error = queue.cancel_keys(["a", "b"]).await.expect_err("the key is locked");
        assert!(error.may_have_happened() && error.kind().is_temporary());
        assert!(chain(&error).ends_with("another transaction has locked the key; try again later"));
        // The other key was already cancelled, so this call changes nothing.
        let error = queue.cancel_keys(["a", "b"]).await.expect_err("the key is locked");
        assert!(!error.may_have_happened() && error.kind().is_temporary());
    }
}

#[test]
fn no_error_prints_its_source_which_it_returns() {
    let mut sources = 0;
    for (name, error) in all() {
        let mut error: &dyn Error = &*error;
        while let Some(source) = error.source() {
            let (outer, inner) = (error.to_string(), source.to_string());
            assert!(!inner.is_empty() && !outer.contains(&inner), "{name}: {outer:?}, {inner:?}");
            (error, sources) = (source, sources + 1);
        }
    }
    assert_eq!(sources, 8);
}

#[test]
fn all_types_of_errors_are_held_to_that() {
    let text = include_str!("../types/error.rs");
    // The source text contains the enums, and the calls of the macro. In a call, the name is followed by a comma and
    // the end of the message.
    let enums = text.lines().filter_map(|line| line.strip_prefix("pub enum "));
    let by_macro = text.split("\nerror! {").skip(1).flat_map(str::lines).map(str::trim);
    let names = enums.chain(by_macro).filter_map(|line| line.split([' ', ',']).next());
    let found: BTreeSet<_> =
        names.filter(|name| name.ends_with("Error") && !name.contains('`')).collect();
    let held: BTreeSet<_> = all().into_iter().map(|(name, _)| name).collect();
    assert_eq!(found, held);
}

#[test]
fn a_chain_has_each_part_once() {
    #[derive(Debug)]
    struct Outer(Box<dyn Error>, &'static str);
    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.1)
        }
    }
    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&*self.0)
        }
    }
    let error = Outer(Box::new(Outer("the cause".into(), "the middle: the cause")), "the outside");
    assert_eq!(chain(&error), "the outside: the middle: the cause");
}
