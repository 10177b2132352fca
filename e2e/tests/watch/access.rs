//! Missing permissions, and options that are refused.

use requeue_e2e::{Access, Server};

use crate::support::{allow, watch};

/// Runs a command that must be refused. Returns its exit code and its messages.
async fn refused(access: Access<'_>, args: &[&str]) -> (Option<i32>, String) {
    let mut command = tokio::process::Command::from(watch(&access.kubeconfig(), args));
    let output = command.stdin(std::process::Stdio::null()).output().await.unwrap();
    assert_eq!(output.stdout, b"");
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[tokio::test]
async fn who_may_not_list_is_told_what_and_that_is_the_end() {
    let Some(server) = Server::shared().await else { return };
    let ns = server.namespace("refused").await;
    let nobody = || server.access().user("nobody");
    let (code, said) = refused(nobody(), &["cm", "-n", &ns, "--", "true"]).await;
    assert_eq!(code, Some(5), "{said}");
    let start = format!("requeue: list configmaps in namespace {ns}: 403: ");
    assert!(said.starts_with(&start) && said.contains("\"nobody\""), "{said}");

    let (code, said) = refused(nobody(), &["deploy", "-A", "--", "true"]).await;
    assert_eq!(code, Some(5), "{said}");
    assert!(said.starts_with("requeue: list deployments.apps: 403: "), "{said}");

    // The same user is selected by a flag.
    let args = ["cm", "-n", &ns, "--as", "somebody", "--", "true"];
    let (code, said) = refused(server.access(), &args).await;
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("\"somebody\""), "{said}");
}

#[tokio::test]
async fn who_may_not_watch_or_patch_is_told_at_the_start() {
    let Some(server) = Server::shared().await else { return };
    let ns = server.namespace("lister").await;
    for (rights, flags, missing) in [
        (&["list"][..], &[][..], "watch"),
        (&["list", "watch"], &["--finalizer", "example.com/cleanup"], "patch"),
    ] {
        let user = format!("without-{missing}");
        allow(server, &ns, &user, rights).await;
        let args = [&["cm", "-n", &ns], flags, &["--", "true"]].concat();
        let (code, said) = refused(server.access().user(&user), &args).await;
        assert_eq!(code, Some(5), "{said}");
        let start =
            format!("requeue: user {user:?} may not {missing} configmaps in namespace {ns}; ");
        assert!(said.starts_with(&start), "{said}");
    }
}

#[tokio::test]
async fn what_is_watched_besides_has_to_be_listable_as_well() {
    let Some(server) = Server::shared().await else { return };
    let ns = server.namespace("besides").await;
    allow(server, &ns, "half", &["list", "watch"]).await;
    for flag in [&["--owns", "secrets"], &["--all-on", "secrets/a"], &["--snapshot", "s=secrets"]] {
        let args = [&["cm", "-n", &ns], &flag[..], &["--", "true"]].concat();
        let (code, said) = refused(server.access().user("half"), &args).await;
        assert_eq!(code, Some(5), "{said}");
        let start = format!("requeue: list secrets in namespace {ns}: 403: ");
        assert!(said.starts_with(&start), "{said}");
    }
    let args = ["cm", "-n", &ns, "--owns", "depoly", "--", "true"];
    let (code, said) = refused(server.access(), &args).await;
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("\"depoly\": the server has no such resource"), "{said}");
}

#[tokio::test]
async fn who_may_not_hold_the_lease_is_told() {
    let Some(server) = Server::shared().await else { return };
    let ns = server.namespace("lease").await;
    allow(server, &ns, "unelected", &["list", "watch"]).await;
    let args = ["cm", "-n", &ns, "--leader-election", "lock", "--", "true"];
    let (code, said) = refused(server.access().user("unelected"), &args).await;
    assert_eq!(code, Some(5), "{said}");
    let start = format!("requeue: get leases.coordination.k8s.io in namespace {ns}: 403: ");
    assert!(said.starts_with(&start), "{said}");

    let args = ["cm", "-n", &ns, "--leader-election", "nowhere/lock", "--", "true"];
    let (code, said) = refused(server.access(), &args).await;
    assert_eq!(code, Some(5), "{said}");
    let start = "requeue: create leases.coordination.k8s.io in namespace nowhere: 404: ";
    assert!(said.starts_with(start), "{said}");
}

#[tokio::test]
async fn what_is_not_there_is_told_with_what_is_like_it() {
    let Some(server) = Server::shared().await else { return };
    let (code, said) = refused(server.access(), &["depoly", "--", "true"]).await;
    assert_eq!(code, Some(5), "{said}");
    assert_eq!(
        said,
        "requeue: \"depoly\": the server has no such resource, but deployments.apps\n"
    );
}

#[tokio::test]
async fn a_command_line_that_makes_no_sense_is_a_usage_error() {
    let Some(server) = Server::shared().await else { return };
    for (args, why) in [
        (&["cm"][..], "no COMMAND"),
        (&[], "RESOURCE"),
        (&["cm", "-n", "x", "-A", "--", "true"], "cannot be used with"),
        (&["cm", "--changed", "data", "--", "true"], "not a JSON pointer; it begins with a slash"),
        (&["cm", "--on", "delete", "--resync", "1m", "--", "true"], "--resync requires"),
        (&["cm", "--on", "apply", "--finalizer", "a.b/c", "--", "true"], "--finalizer requires"),
        (&["cm", "--finalizer", "cleanup", "--", "true"], "'cleanup' for '--finalizer <NAME>'"),
        (&["cm", "--on", "delete", "--owns", "secrets", "--", "true"], "--owns requires"),
        (&["cm", "--all-on", "secrets/", "--", "true"], "'secrets/' for '--all-on"),
        (&["cm", "--snapshot", "../a=cm", "--", "true"], "'../a=cm' for '--snapshot"),
        (
            &["cm", "--snapshot", "a=cm", "--snapshot", "a=secrets", "--", "true"],
            "--snapshot a=...: the name is used twice",
        ),
        (&["cm", "--leader-election", "A_b", "--", "true"], "'A_b' for '--leader-election"),
        (&["cm", "--lease-duration", "3s", "--", "true"], "--leader-election"),
        (
            &["cm", "--leader-election", "a", "--lease-duration", "3s", "--", "true"],
            "--leader-election: the renew deadline, 10s, has to be less than the lease's duration, 3s",
        ),
        (&["cm", "-l", "((", "--", "true"], "list configmaps in namespace default: 400: "),
    ] {
        let (code, said) = refused(server.access(), args).await;
        assert_eq!(code, Some(2), "{args:?}: {said}");
        assert!(said.contains(why), "{args:?}: {said}");
    }
    let args = ["cm", "--context", "none", "--", "true"];
    let (code, said) = refused(server.access(), &args).await;
    assert_eq!(code, Some(125), "{said}");
    assert!(said.starts_with("requeue: --context: ") && said.contains("none"), "{said}");
}
