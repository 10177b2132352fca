//! The search index: a SQLite file with full-text search.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::{Connection, Result, params};

const SCHEMA: &str = "
    pragma journal_mode = wal;
    create virtual table if not exists articles using fts5 (title, body);
    create table if not exists writes (id integer primary key, token integer not null);
";

/// The current content of a row.
#[derive(Clone, Debug)]
pub struct Article {
    /// The title.
    pub title: String,
    /// The text.
    pub body: String,
}

/// The index. Clones share its connection. The calls block their thread for one commit.
#[derive(Clone, Debug)]
pub struct Index {
    connection: Arc<Mutex<Connection>>,
}

impl Index {
    /// Opens the index, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn open(file: &Path) -> Result<Self> {
        let connection = Connection::open(file)?;
        connection.execute_batch(SCHEMA)?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)) })
    }

    /// Writes the article, or removes it if it is `None`. Returns false if a later run has already written it.
    ///
    /// `token` is the fencing token of the run. A worker that has stalled cannot replace a newer article.
    ///
    /// # Errors
    ///
    /// The file cannot be written. It is then unchanged.
    pub fn write(&self, id: i64, token: i64, article: Option<Article>) -> Result<bool> {
        let mut connection = self.connection.lock();
        let transaction = connection.transaction()?;
        let newest = transaction.execute(
            "insert into writes values (?1, ?2)
             on conflict (id) do update set token = excluded.token where token < excluded.token",
            params![id, token],
        )?;
        if newest == 0 {
            return Ok(false);
        }
        transaction.execute("delete from articles where rowid = ?1", [id])?;
        if let Some(Article { title, body }) = article {
            let insert = "insert into articles (rowid, title, body) values (?1, ?2, ?3)";
            transaction.execute(insert, params![id, title, body])?;
        }
        transaction.commit()?;
        Ok(true)
    }

    /// Returns the ids and titles of the ten best matches, which contain all words.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn find(&self, words: &str) -> Result<Vec<(i64, String)>> {
        // In quotes, no word is an operator of the query language.
        let quote = |word: &str| format!("\"{}\"", word.replace('"', "\"\""));
        let query: Vec<String> = words.split_whitespace().map(quote).collect();
        let connection = self.connection.lock();
        let mut found = connection.prepare(
            "select rowid, title from articles where articles match ?1 order by rank limit 10",
        )?;
        let rows = found.query_map([query.join(" ")], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    }
}
