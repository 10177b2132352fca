//! `--snapshot`: writes other objects to files for the commands. The files of a run do not change while the run lasts.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use kube::api::ListParams;
use kube::core::{DynamicObject, TypeMeta};
use kube::runtime::watcher::Event;
use parking_lot::Mutex;
use requeue_kube::ObjectKey;
use tempfile::TempDir;
use tokio::sync::SetOnce;

use super::access::Access;
use super::events::{Source, Step, complete_object, type_meta};
use super::resource::Resource;
use crate::args::names::Named;
use crate::exit::Refusal;
use crate::runner::Runner;

/// The objects of all resources of `--snapshot`, and a directory for each of their states that a run uses.
#[derive(Debug)]
pub(crate) struct Snapshots {
    root: TempDir,
    stores: Vec<Arc<Store>>,
    last: tokio::sync::Mutex<Option<Snapshot>>,
}

/// The objects of one resource.
#[derive(Debug)]
struct Store {
    /// The name of the resource's file, without the extension.
    name: String,
    resource: Resource,
    types: TypeMeta,
    contents: Mutex<Contents>,
    is_listed: SetOnce<()>,
}

#[derive(Debug, Default)]
struct Contents {
    /// The version of the objects, which increases with each change.
    version: u64,
    objects: Arc<BTreeMap<ObjectKey, Arc<[u8]>>>,
    /// The objects of a list that has begun and is not yet complete.
    list: BTreeMap<ObjectKey, Arc<[u8]>>,
}

/// One state of all objects, as files that do not change.
#[derive(Debug)]
struct Snapshot {
    /// The directory of the files. It is removed when no run uses it any longer.
    dir: Arc<TempDir>,
    versions: Vec<u64>,
}

impl Store {
    fn new(name: String, resource: Resource) -> Self {
        let (types, contents) = (type_meta(&resource), Mutex::default());
        Self { name, resource, types, contents, is_listed: SetOnce::new() }
    }

    /// Applies the changes of the objects as they arrive. Never returns.
    async fn follow(self: Arc<Self>, source: Source<DynamicObject>, runner: Arc<Runner>) {
        source.for_each_step(&runner, |step| self.take(step)).await;
    }

    fn take(&self, step: Step<DynamicObject>) {
        let mut contents = self.contents.lock();
        let Contents { version, objects, list } = &mut *contents;
        let event = match step {
            Step::Event(event) => event,
            Step::Kept(key) => return list.extend(objects.get_key_value(&key).map(owned)),
            Step::Gone(meta) => {
                Arc::make_mut(objects).remove(&ObjectKey::from_meta(&meta));
                *version += 1;
                return;
            }
        };
        match event {
            Event::Init => return list.clear(),
            Event::InitApply(object) => {
                list.extend([self.entry(object)]);
                return;
            }
            Event::InitDone => {
                let list = std::mem::take(list);
                // A new list after an outage often contains the same objects. The existing files can then still be
                // used.
                if **objects == list && self.is_listed.get().is_some() {
                    return;
                }
                *objects = Arc::new(list);
            }
            // The map is copied only if a run is writing its files at this moment.
            Event::Apply(object) => Arc::make_mut(objects).extend([self.entry(object)]),
            Event::Delete(object) => {
                Arc::make_mut(objects).remove(&ObjectKey::from_object(&object));
            }
        }
        *version += 1;
        // Runs wait only for the first list, so a later `set` has no effect.
        let _ = self.is_listed.set(());
    }

    fn entry(&self, mut object: DynamicObject) -> (ObjectKey, Arc<[u8]>) {
        complete_object(&mut object, &self.types);
        // The value was parsed from JSON, so it can be serialized.
        let json = serde_json::to_vec(&object).unwrap_or_default();
        (ObjectKey::from_object(&object), json.into())
    }
}

fn owned((key, json): (&ObjectKey, &Arc<[u8]>)) -> (ObjectKey, Arc<[u8]>) {
    (key.clone(), Arc::clone(json))
}

impl Snapshots {
    /// Finds the resources of `--snapshot`. Returns `None` if the flag is missing.
    pub(crate) async fn find(
        access: &Access,
        all: Vec<Named>,
    ) -> Result<Option<Arc<Self>>, Refusal> {
        if all.is_empty() {
            return Ok(None);
        }
        let mut stores = Vec::new();
        for (name, resource) in all {
            let resource = access.find_listable(&resource, &ListParams::default()).await?;
            stores.push(Arc::new(Store::new(name, resource)));
        }
        let snapshots = Self::new(stores);
        let snapshots = snapshots.map_err(|e| Refusal::failure(format!("--snapshot: {e}")))?;
        Ok(Some(Arc::new(snapshots)))
    }

    /// Creates the root directory. Only this user can read it.
    fn new(stores: Vec<Arc<Store>>) -> io::Result<Self> {
        let root = tempfile::Builder::new().prefix("requeue-").tempdir()?;
        Ok(Self { root, stores, last: tokio::sync::Mutex::default() })
    }

    pub(crate) fn follow(&self, access: &Access, runner: &Arc<Runner>) {
        for store in &self.stores {
            let source = access.event_source(&store.resource, &ListParams::default());
            tokio::spawn(Arc::clone(store).follow(source, Arc::clone(runner)));
        }
    }

    /// Waits until the objects of all resources have been listed once.
    pub(crate) async fn listed(&self) {
        for store in &self.stores {
            store.is_listed.wait().await;
        }
    }

    /// Returns a directory with the current objects. All its files are complete, and do not change.
    pub(crate) async fn now(&self) -> io::Result<Arc<TempDir>> {
        // The lock is held while the files are written. Runs that start at the same time then share one directory.
        let mut last = self.last.lock().await;
        let now: Vec<_> = self
            .stores
            .iter()
            .map(|store| {
                let contents = store.contents.lock();
                (contents.version, Arc::clone(&contents.objects))
            })
            .collect();
        let versions: Vec<_> = now.iter().map(|(version, _)| *version).collect();
        if let Some(last) = last.as_ref().filter(|last| last.versions == versions) {
            return Ok(Arc::clone(&last.dir));
        }
        let dir = tokio::task::block_in_place(|| {
            let dir = tempfile::tempdir_in(&self.root)?;
            for (i, (store, (version, objects))) in self.stores.iter().zip(&now).enumerate() {
                let file = format!("{}.json", store.name);
                let path = dir.path().join(&file);
                let same = last.as_ref().filter(|last| last.versions[i] == *version);
                // An unchanged file is shared through a hard link, because lists can be large.
                let linked = same.map(|last| fs::hard_link(last.dir.path().join(&file), &path));
                // Not every file system supports hard links. If the link fails, the file is written.
                if !matches!(linked, Some(Ok(()))) {
                    write(&path, objects.values())?;
                }
            }
            io::Result::Ok(dir)
        })?;
        let dir = Arc::new(dir);
        *last = Some(Snapshot { dir: Arc::clone(&dir), versions });
        Ok(dir)
    }

    /// Removes all files.
    pub(crate) fn clear(&self) {
        // If this fails, files stay in the system's temporary directory. No action of this program depends on that.
        let _ = fs::remove_dir_all(self.root.path());
    }
}

/// Writes a JSON array, with one object per line.
fn write<'a>(path: &Path, objects: impl Iterator<Item = &'a Arc<[u8]>>) -> io::Result<()> {
    let mut file = BufWriter::new(File::create_new(path)?);
    let mut before: &[u8] = b"[\n";
    for object in objects {
        file.write_all(before)?;
        file.write_all(object)?;
        before = b",\n";
    }
    file.write_all(if before == b"[\n" { b"[]\n" } else { b"\n]\n" })?;
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    // The file is made read-only, because several runs share it.
    file.set_permissions(Permissions::from_mode(0o444))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use serde_json::{Value, json};

    use super::*;

    fn object(name: &str, value: u32) -> DynamicObject {
        let object = json!({
            "metadata": { "name": name, "namespace": "ns", "managedFields": [{ "manager": "me" }] },
            "value": value,
        });
        serde_json::from_value(object).unwrap()
    }

    fn read(dir: &TempDir, name: &str) -> Value {
        serde_json::from_slice(&fs::read(dir.path().join(name)).unwrap()).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_snapshot_stays_as_it_is_and_only_what_has_changed_is_written_anew() {
        let things = Resource::of("example.com", "v1", "Thing", "things");
        let stores = ["a", "b"].map(|name| Arc::new(Store::new(name.into(), things.clone())));
        let snapshots = Snapshots::new(stores.to_vec()).unwrap();
        for store in &stores {
            [Event::Init, Event::InitDone]
                .into_iter()
                .for_each(|event| store.take(Step::Event(event)));
        }
        snapshots.listed().await;
        let empty = snapshots.now().await.unwrap();
        assert_eq!(read(&empty, "a.json"), json!([]));
        assert_eq!(snapshots.now().await.unwrap().path(), empty.path());

        stores[0].take(Step::Event(Event::Apply(object("y", 1))));
        stores[0].take(Step::Event(Event::Apply(object("x", 1))));
        let first = snapshots.now().await.unwrap();
        let x = json!({
            "apiVersion": "example.com/v1",
            "kind": "Thing",
            "metadata": { "name": "x", "namespace": "ns" },
            "value": 1,
        });
        assert_eq!(read(&first, "a.json")[0], x);
        assert_eq!(read(&first, "a.json")[1]["metadata"]["name"], "y");
        let number = |dir: &TempDir| fs::metadata(dir.path().join("b.json")).unwrap().ino();
        assert_eq!(number(&first), number(&empty));

        stores[0].take(Step::Event(Event::Apply(object("x", 2))));
        stores[0].take(Step::Event(Event::Delete(object("y", 1))));
        let second = snapshots.now().await.unwrap();
        assert_eq!(read(&second, "a.json")[0]["value"], 2);
        assert_eq!(read(&second, "a.json").as_array().unwrap().len(), 1);
        assert_eq!(read(&first, "a.json")[0], x);
        assert_eq!(read(&empty, "a.json"), json!([]));

        // The start of a new list does not change the objects.
        let begun = [Event::Init, Event::InitApply(object("z", 1)), Event::Init];
        begun.into_iter().for_each(|event| stores[0].take(Step::Event(event)));
        assert_eq!(snapshots.now().await.unwrap().path(), second.path());
        let unchanged = [Event::InitApply(object("x", 2)), Event::InitDone];
        unchanged.into_iter().for_each(|event| stores[0].take(Step::Event(event)));
        assert_eq!(snapshots.now().await.unwrap().path(), second.path());
        [Event::Init, Event::InitDone]
            .into_iter()
            .for_each(|event| stores[0].take(Step::Event(event)));
        assert_eq!(read(&snapshots.now().await.unwrap(), "a.json"), json!([]));

        let gone = first.path().to_owned();
        drop(first);
        assert!(!gone.exists() && second.path().exists());
        snapshots.clear();
        assert!(!snapshots.root.path().exists());
    }
}
