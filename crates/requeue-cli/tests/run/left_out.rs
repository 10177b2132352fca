//! Programs that are built without some of their features.

use std::process::Command;

use crate::support::end;

#[test]
fn a_store_of_an_engine_that_is_left_out_is_refused_with_the_name_of_its_feature() {
    for (url, feature, is_left_out) in [
        ("sqlite:a.db", "sqlite", !cfg!(feature = "sqlite")),
        ("postgres://localhost/a", "postgres", !cfg!(feature = "postgres")),
        ("postgresql://localhost/a", "postgres", !cfg!(feature = "postgres")),
        ("redis://localhost", "redis", !cfg!(feature = "redis")),
        ("rediss://localhost", "redis", !cfg!(feature = "redis")),
    ] {
        if !is_left_out {
            continue;
        }
        for args in [
            &["add", "a"][..],
            &["work", "--until-empty", "true"],
            &["run", "true"],
            &["keys"],
            &["queues"],
            &["revive", "--all"],
            &["store", "init"],
        ] {
            let mut requeue = Command::new(env!("CARGO_BIN_EXE_requeue"));
            let flags = ["--store", url, "--wait"];
            let count = if args[0] == "store" { 2 } else { 1 };
            requeue.args(&args[..count]).args(flags).args(&args[count..]);
            let ended = end(&mut requeue, "a\n");
            let message = format!(
                "requeue: {feature}: this program was built without it; enable the feature `{feature}`\n"
            );
            assert_eq!((ended.code(), ended.stderr), (Some(2), message), "{args:?}");
        }
    }
}
