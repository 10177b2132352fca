//! Snapshots of other objects, as files.

use std::path::Path;

use requeue_e2e::{Server, until};
use serde_json::json;

use crate::support::{Watching, create, delete, json, maps, patch};

#[tokio::test]
async fn a_command_has_other_objects_as_they_are_when_it_starts() {
    let Some(server) = Server::shared().await else { return };
    let (maps, ns) = maps(server, "snapshot").await;
    for name in ["a", "b"] {
        create(&maps, name, "1").await;
    }
    let dir = tempfile::tempdir().unwrap();
    let go = dir.path().join("go").display().to_string();
    let script = format!(
        r#"echo "at $REQUEUE_SNAPSHOTS"
        [ "$REQUEUE_NAME" != slow ] || while [ ! -e '{go}' ]; do sleep 0.05; done
        printf '%s %s\n' "$REQUEUE_NAME" "$(tr -d '\n' <"$REQUEUE_SNAPSHOTS/maps.json")"
        printf '%s has %s\n' "$REQUEUE_NAME" "$(tr -d '\n' <"$REQUEUE_SNAPSHOTS/spaces.json")""#
    );
    let args = ["cm", "-n", &ns, "-j2", "--min-interval", "0", "--snapshot", "maps=cm"];
    let args = [&args[..], &["--snapshot", "spaces=namespaces", "-c", &script]].concat();
    let watching = Watching::start(server, "snapshot", &args);
    let values = |list: &str| {
        let list = json(list);
        let list = list.as_array().unwrap().iter();
        list.map(|map| format!("{} {}", map["metadata"]["name"], map["data"]["value"])).collect()
    };
    let values: &dyn Fn(&str) -> Vec<String> = &values;

    // The snapshot is complete before the first run.
    let first = watching.wait("a [", 1).await;
    let list = json(&format!("[{}", first[0]));
    assert_eq!((&list[0]["kind"], &list[0]["apiVersion"]), (&json!("ConfigMap"), &json!("v1")));
    assert_eq!(list[0]["metadata"].get("managedFields"), None);
    assert_eq!(values(&format!("[{}", first[0])), [r#""a" "1""#, r#""b" "1""#]);
    let spaces = json(&watching.wait("a has ", 1).await[0]);
    let has = |name: &str| {
        spaces.as_array().unwrap().iter().any(|space| space["metadata"]["name"] == name)
    };
    assert!(has(&ns) && has("default"), "{spaces}");
    watching.wait("b has", 1).await;

    // Changes during a run affect only the snapshot of the next run.
    create(&maps, "slow", "1").await;
    watching.wait("at ", 3).await;
    patch(&maps, "b", &json!({ "data": { "value": "2" } })).await;
    delete(&maps, "a").await;
    until("the next has it", async || {
        patch(&maps, "b", &json!({ "metadata": { "labels": { "n": null } } })).await;
        create(&maps, "next", "1").await;
        watching.wait("next [", 1).await;
        let lists = watching.lines("next [");
        delete(&maps, "next").await;
        let now = values(lists.last().unwrap().trim_start_matches("next "));
        now == [r#""b" "2""#, r#""next" "1""#, r#""slow" "1""#]
    })
    .await;
    std::fs::write(go, "").unwrap();
    let slow = watching.wait("slow [", 1).await;
    // The object itself may be missing in its list, because another watch reads that list.
    let others = values(&format!("[{}", slow[0]));
    assert_eq!(others[..2], [r#""a" "1""#, r#""b" "1""#]);

    let at = watching.lines("at ");
    watching.end().await;
    for line in at {
        let path = Path::new(line.trim_start_matches("at "));
        assert!(path.is_absolute() && !path.exists() && !path.parent().unwrap().exists());
    }
}
