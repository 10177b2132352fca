//! The index beside a PostgreSQL server.

use std::error::Error;
use std::future::pending;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use requeue_servers::Postgres;
use search_index::{Article, Index, Indexer};
use tokio::runtime::Runtime;

type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const LEASE: Duration = Duration::from_secs(1);

/// Runs SQL in the database at `url`.
fn sql(server: &Postgres, url: &str, sql: &str) -> String {
    server.psql(url.rsplit_once('/').map_or(url, |(_, database)| database), sql)
}

/// Starts a worker, and returns the number of runs of all workers when the queue is empty.
async fn catch_up(url: &str, index: &Index) -> Result<u64> {
    let indexer = Indexer::set_up(url, LEASE).await?;
    let queue = indexer.queue.clone();
    queue.shut_down_when_idle();
    indexer.work(index.clone(), pending()).await;
    Ok(queue.activity(Duration::from_secs(3600)).await?.total().starts)
}

fn titles(index: &Index, words: &str) -> Result<Vec<String>> {
    Ok(index.find(words)?.into_iter().map(|(_, title)| title).collect())
}

#[tokio::test]
async fn the_index_follows_commits_and_no_rollback() -> Result {
    let Some(server) = Postgres::shared() else { return Ok(()) };
    let (url, directory) = (server.database(), tempfile::tempdir()?);
    let index = Index::open(&directory.path().join("search.db"))?;
    Indexer::set_up(&url, LEASE).await?;

    // No worker runs, as after a crash between a commit and the run.
    let insert =
        "insert into articles (title, body) values ('Tea', 'water'), ('Soup', 'water and salt')";
    sql(server, &url, insert);
    for version in 1..=10 {
        sql(server, &url, &format!("update articles set body = 'milk {version}' where id = 1"));
    }
    sql(server, &url, "begin; insert into articles (title, body) values ('Ash', 'x'); rollback");
    assert_eq!(catch_up(&url, &index).await?, 2, "one run for each article");
    assert_eq!(titles(&index, "milk 10")?, ["Tea"]);
    assert_eq!(titles(&index, "milk 9")?, [""; 0]);
    assert_eq!(titles(&index, "salt water")?, ["Soup"]);

    sql(server, &url, "delete from articles where id = 2");
    assert_eq!(catch_up(&url, &index).await?, 3);
    assert_eq!(titles(&index, "water")?, [""; 0]);

    // An update of the id removes the old one.
    sql(server, &url, "update articles set id = default");
    assert_eq!(catch_up(&url, &index).await?, 5);
    assert_eq!(titles(&index, "milk")?, ["Tea"]);
    Ok(())
}

#[tokio::test]
async fn programs_can_start_at_the_same_time() -> Result {
    let Some(server) = Postgres::shared() else { return Ok(()) };
    let url = server.database();
    for _ in 0..5 {
        let set_up = || Indexer::set_up(&url, LEASE);
        tokio::try_join!(set_up(), set_up(), set_up(), set_up())?;
    }
    Ok(())
}

#[test]
fn a_worker_that_dies_in_a_run_loses_no_change() -> Result {
    let Some(server) = Postgres::shared() else { return Ok(()) };
    let (url, directory) = (server.database(), tempfile::tempdir()?);
    let index = Index::open(&directory.path().join("search.db"))?;
    let dying = Runtime::new()?;
    dying.block_on(async {
        let indexer = Indexer::set_up(&url, LEASE).await?;
        sql(server, &url, "insert into articles (title, body) values ('Tea', 'water')");
        // A forgotten item is neither completed nor returned.
        std::mem::forget(indexer.queue.get().await);
        Ok::<_, Box<dyn Error + Send + Sync>>(())
    })?;
    dying.shutdown_background();
    sql(server, &url, "update articles set body = 'milk'");

    Runtime::new()?.block_on(catch_up(&url, &index))?;
    assert_eq!(titles(&index, "milk")?, ["Tea"]);
    Ok(())
}

#[test]
fn a_stalled_worker_replaces_no_newer_article() -> Result {
    let index = Index::open(Path::new(":memory:"))?;
    let article = |body: &str| Some(Article { title: "Tea".to_owned(), body: body.to_owned() });
    assert!(index.write(1, 8, article("milk"))?);
    assert!(!index.write(1, 7, article("water"))?);
    assert_eq!(titles(&index, "milk")?, ["Tea"]);
    // A deletion has a token, too.
    assert!(index.write(1, 9, None)?);
    assert!(!index.write(1, 8, article("milk"))?);
    assert_eq!(titles(&index, "milk")?, [""; 0]);
    Ok(())
}

#[test]
fn words_are_no_operators_and_wrong_arguments_are_named() -> Result {
    let index = Index::open(Path::new(":memory:"))?;
    index.write(
        1,
        1,
        Some(Article { title: "To be".to_owned(), body: "or NOT \"be\"".to_owned() }),
    )?;
    assert_eq!(titles(&index, "be AND or")?, [""; 0]);
    assert_eq!(titles(&index, "( \" *")?, [""; 0]);
    assert_eq!(titles(&index, "be not")?, ["To be"]);
    let directory = tempfile::tempdir()?;
    for arguments in [&["find"][..], &[], &["sqlite:a.db"], &["a", "b"]] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_search-index"));
        let output = program.args(arguments).current_dir(directory.path()).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("use `search-index postgres://HOST/DATABASE`"), "{said}");
    }
    Ok(())
}
