//! `--leader-election`: only one of several replicas runs commands.

use std::process::Stdio;

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use requeue_e2e::{Server, until};

use crate::support::{Watching, create, maps, watch};

/// The durations of the election. They are short, but a slow machine still has enough time between
/// the end of one term and the start of the next.
const TIMES: [&str; 6] =
    ["--lease-duration", "6s", "--renew-deadline", "2s", "--retry-period", "500ms"];

#[tokio::test]
async fn one_runs_and_another_takes_over_once_it_has_drained() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "leader").await;
    create(&maps, "a", "").await;
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go").display().to_string();
    let script = format!(
        r#"echo "start $1 <"
        [ "$REQUEUE_NAME" != slow ] || while [ ! -e '{go}' ]; do sleep 0.05; done
        echo "end $1 <""#
    );
    let args = ["cm", "-n", &ns, "--min-interval", "0", "-j4", "--leader-election", "lock"];
    let args = [&args[..], &TIMES, &["-c", &script]].concat();
    let (leads, stands_by) = ("requeue: leading", "requeue: on standby");
    let first = Watching::start(server, "leader-first", &args);
    first.wait(&format!("{leads} with the Lease {ns}/lock"), 1).await;
    let second = Watching::start(server, "leader-second", &args);
    second.wait(stands_by, 1).await;
    first.wait(&format!("end {ns}/a"), 1).await;
    create(&maps, "slow", "").await;
    first.wait(&format!("start {ns}/slow"), 1).await;

    // The lease is renewed as long as a command runs.
    let leases: Api<Lease> = Api::namespaced(server.client().await, &ns);
    let renewed = async || leases.get("lock").await.unwrap().spec.unwrap();
    let ending = async {
        first.wait("requeue: SIGTERM", 1).await;
        let before = renewed().await;
        until("the lease is renewed", async || renewed().await.renew_time > before.renew_time)
            .await;
        assert_eq!(renewed().await.holder_identity, before.holder_identity);
        assert!(second.lines(leads).is_empty());
        std::fs::write(&go, "").unwrap();
    };
    tokio::join!(first.terminate(), ending);
    assert_eq!(first.lines(&format!("end {ns}/slow")).len(), 1);
    let log = first.log();
    assert!(!log.contains("could not be released"), "{log}");

    // All objects run, including those that the standby has only observed.
    for name in ["a", "slow"] {
        second.wait(&format!("end {ns}/{name} <"), 1).await;
    }
    create(&maps, "new", "").await;
    second.wait(&format!("end {ns}/new <"), 1).await;
    assert_eq!(second.lines("start").len(), 3);
}

#[tokio::test]
async fn who_can_not_renew_ends_all_that_runs_before_another_begins() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "lost").await;
    for name in ["heeds", "ignores"] {
        create(&maps, name, "").await;
    }
    let dir = tempfile::tempdir().unwrap();
    let alive = dir.path().join("alive").display().to_string();
    // Each command records that it runs, and reports an earlier command that still runs.
    let script = format!(
        r#"pid='{alive}-'"$REQUEUE_NAME"
        [ ! -e "$pid" ] || ! kill -0 "$(cat "$pid")" || echo "beside $1"
        case $REQUEUE_NAME in
            heeds) trap 'exit' TERM ;;
            ignores) trap '' TERM ;;
        esac
        echo $$ >"$pid.new"
        mv "$pid.new" "$pid"
        echo "start $1"
        while :; do sleep 0.05; done"#
    );
    let args = ["cm", "-n", &ns, "-j4", "--leader-election", "lock"];
    let args = [&args[..], &TIMES, &["-c", &script]].concat();
    let proxy = server.proxy().await;
    let access = server.access().through(&proxy);
    let mut command = tokio::process::Command::from(watch(&access.kubeconfig(), &args));
    let first = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let first = first.kill_on_drop(true).spawn().unwrap();
    until("both commands run", async || {
        ["heeds", "ignores"].iter().all(|name| std::fs::exists(format!("{alive}-{name}")).unwrap())
    })
    .await;
    let second = Watching::start(server, "lost-second", &args);
    second.wait("requeue: on standby", 1).await;
    proxy.freeze();
    let output = first.wait_with_output().await.unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{said}");
    let why = format!("requeue: Lease {ns}/lock: leadership lost: the lease was not renewed");
    assert!(said.contains(&why), "{said}");
    for name in ["heeds", "ignores"] {
        second.wait(&format!("start {ns}/{name}"), 1).await;
    }
    assert!(second.lines("beside").is_empty(), "{}", second.log());
}
