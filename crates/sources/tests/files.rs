//! Directories that change while they are watched.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pilotfish_config::networking::VirtualService;
use pilotfish_config::{Change, Diagnostic, Object, Store};
use pilotfish_sources::Batch;
use pilotfish_sources::MeshUpdate;
use pilotfish_sources::files::{DirectorySource, Options, watch_mesh};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::time::timeout;

fn service(name: &str, host: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  \
         hosts: [{host}]\n  http:\n  - route:\n    - destination: {{host: {host}}}\n"
    )
}

fn options() -> Options {
    Options {
        settle: Duration::from_millis(50),
        // Long, so that what a test sees is due to an event.
        rescan: Duration::from_hours(1),
        max_file_bytes: 1 << 20,
        ..Options::default()
    }
}

/// What the receiver of the batches knows.
struct Watched {
    batches: mpsc::Receiver<Batch>,
    /// Hosts by name.
    hosts: BTreeMap<String, String>,
    lines: BTreeMap<String, u32>,
    diagnostics: Vec<Diagnostic>,
    upserts: usize,
    deletes: usize,
}

impl Watched {
    async fn start(directories: &[&Path], options: Options) -> Self {
        let directories: Vec<PathBuf> = directories.iter().map(|path| path.to_path_buf()).collect();
        let source = DirectorySource::new(directories, options).expect("directories");
        let (sender, batches) = mpsc::channel(4);
        tokio::spawn(source.run(sender));
        let mut watched = Self {
            batches,
            hosts: BTreeMap::new(),
            lines: BTreeMap::new(),
            diagnostics: Vec::new(),
            upserts: 0,
            deletes: 0,
        };
        assert!(watched.next().await, "the first batch must be synced");
        watched
    }

    async fn next(&mut self) -> bool {
        let batch = timeout(Duration::from_secs(10), self.batches.recv())
            .await
            .expect("a batch in time")
            .expect("the source still runs");
        for change in batch.changes {
            match change {
                Change::Upsert(object) => {
                    self.upserts += 1;
                    let name = object.key.name.to_string();
                    let vs: &VirtualService = object.get().expect("a virtual service");
                    self.hosts.insert(name.clone(), vs.hosts[0].clone());
                    self.lines
                        .insert(name, object.origin.clone().expect("a place").line);
                }
                Change::Delete(key) => {
                    self.deletes += 1;
                    self.hosts
                        .remove(&*key.name)
                        .expect("only what is there is deleted");
                }
                Change::Relocate(key, origin) => {
                    self.lines.insert(key.name.to_string(), origin.line);
                }
            }
        }
        self.diagnostics = batch.diagnostics;
        batch.synced
    }

    async fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..50 {
            if done(self) {
                return;
            }
            let waited = timeout(Duration::from_secs(10), self.next()).await;
            assert!(
                waited.is_ok(),
                "{what}: {:?} {:?}",
                self.hosts,
                self.diagnostics
            );
        }
        panic!("{what}: {:?} {:?}", self.hosts, self.diagnostics);
    }

    /// Nothing more comes for a while.
    async fn quiet(&mut self) {
        let batch = timeout(Duration::from_millis(300), self.batches.recv()).await;
        assert!(batch.is_err(), "unexpected batch {batch:?}");
    }

    fn host(&self, name: &str) -> Option<&str> {
        self.hosts.get(name).map(String::as_str)
    }

    fn report(&self) -> String {
        let lines: Vec<String> = self.diagnostics.iter().map(ToString::to_string).collect();
        lines.join("\n")
    }
}

#[tokio::test]
async fn files_come_change_and_go() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("a.yaml"), service("a", "a.example")).unwrap();
    fs::write(dir.path().join("sub/b.yml"), service("b", "b.example")).unwrap();
    fs::write(dir.path().join(".hidden.yaml"), service("h", "h.example")).unwrap();
    fs::write(dir.path().join("notes.txt"), "x").unwrap();
    let mut watched = Watched::start(&[dir.path()], options()).await;
    assert_eq!(watched.hosts.len(), 2);

    fs::write(dir.path().join("a.yaml"), service("a", "a2.example")).unwrap();
    watched
        .until("change", |w| w.host("a") == Some("a2.example"))
        .await;
    fs::write(dir.path().join("c.json"), r#"{"apiVersion":"networking.istio.io/v1","kind":"VirtualService","metadata":{"name":"c"},"spec":{"hosts":["c.example"],"http":[{"route":[{"destination":{"host":"c"}}]}]}}"#).unwrap();
    watched.until("new file", |w| w.host("c").is_some()).await;
    fs::create_dir_all(dir.path().join("new/deep")).unwrap();
    fs::write(
        dir.path().join("new/deep/d.yaml"),
        service("d", "d.example"),
    )
    .unwrap();
    watched
        .until("new directory", |w| w.host("d").is_some())
        .await;
    fs::remove_dir_all(dir.path().join("sub")).unwrap();
    watched
        .until("deleted directory", |w| w.host("b").is_none())
        .await;
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    watched
        .until("deleted file", |w| w.host("a").is_none())
        .await;
    assert_eq!(watched.hosts.len(), 2);
    assert_eq!(watched.diagnostics, []);
}

#[tokio::test]
async fn editors_replace_files() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, service("a", "v0.example")).unwrap();
    let mut watched = Watched::start(&[dir.path()], options()).await;
    for round in 1..=5 {
        let host = format!("v{round}.example");
        let temporary = dir.path().join(format!(".a.yaml.{round}"));
        fs::write(&temporary, service("a", &host)).unwrap();
        fs::rename(&temporary, &file).unwrap();
        watched
            .until("replaced", |w| w.host("a") == Some(host.as_str()))
            .await;
    }
    // As vim does: the old file is renamed away, the new one written in its place.
    fs::rename(&file, dir.path().join("a.yaml~")).unwrap();
    fs::write(&file, service("a", "v6.example")).unwrap();
    fs::remove_file(dir.path().join("a.yaml~")).unwrap();
    watched
        .until("rewritten", |w| w.host("a") == Some("v6.example"))
        .await;
    // Same content again: nothing to say.
    fs::write(&file, service("a", "v6.example")).unwrap();
    watched.quiet().await;
}

#[tokio::test]
async fn config_maps_are_read_once_and_swapped() {
    let dir = TempDir::new().unwrap();
    let root = dir.path();
    for (version, host) in [("..2024_1", "one.example"), ("..2024_2", "two.example")] {
        fs::create_dir(root.join(version)).unwrap();
        fs::write(root.join(version).join("a.yaml"), service("a", host)).unwrap();
    }
    symlink("..2024_1", root.join("..data")).unwrap();
    symlink("..data/a.yaml", root.join("a.yaml")).unwrap();
    let mut watched = Watched::start(&[root], options()).await;
    assert_eq!(
        (watched.host("a"), watched.upserts),
        (Some("one.example"), 1)
    );
    symlink("..2024_2", root.join("..data_tmp")).unwrap();
    fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    fs::remove_dir_all(root.join("..2024_1")).unwrap();
    watched
        .until("swapped", |w| w.host("a") == Some("two.example"))
        .await;
    assert_eq!((watched.upserts, watched.deletes), (2, 0));
    assert_eq!(watched.diagnostics, []);
}

#[tokio::test]
async fn broken_files_keep_their_last_good_objects() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("all.yaml");
    let good = |host: &str| format!("{}---\n{}", service("a", host), service("b", "b.example"));
    fs::write(&file, good("a.example")).unwrap();
    let mut watched = Watched::start(&[dir.path()], options()).await;
    assert_eq!(watched.hosts.len(), 2);

    // A syntax error in one document: we cannot know whose it is, so nothing of the file is dropped.
    fs::write(
        &file,
        format!("{}---\nkind: [\n", service("b", "b2.example")),
    )
    .unwrap();
    watched
        .until("other document", |w| w.host("b") == Some("b2.example"))
        .await;
    assert_eq!(watched.host("a"), Some("a.example"));
    assert!(
        watched.report().contains("invalid YAML"),
        "{}",
        watched.report()
    );

    // A mistake in one object: that one keeps its last good version, and what is gone is gone.
    fs::write(
        &file,
        service("a", "a3.example").replace("hosts:", "hosts: 5 #"),
    )
    .unwrap();
    watched.until("wrong type", |w| w.host("b").is_none()).await;
    assert_eq!(watched.host("a"), Some("a.example"));
    assert!(
        watched.report().contains("expected a list, found 5"),
        "{}",
        watched.report()
    );

    // Binary, then too large, then good again.
    fs::write(&file, b"\0\xff").unwrap();
    watched
        .until("binary", |w| w.report().contains("NUL"))
        .await;
    fs::write(&file, "x".repeat(2 << 20)).unwrap();
    watched
        .until("large", |w| w.report().contains("larger than"))
        .await;
    assert_eq!(watched.host("a"), Some("a.example"));
    fs::write(&file, good("a4.example")).unwrap();
    watched
        .until("repaired", |w| {
            w.host("a") == Some("a4.example") && w.host("b").is_some()
        })
        .await;
    assert_eq!(watched.diagnostics, []);
}

#[tokio::test]
async fn a_lasting_mistake_does_not_keep_everything_for_ever() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("all.yaml");
    let broken = "---\nkind: [\n";
    let (a, b) = (service("a", "a.example"), service("b", "b.example"));
    fs::write(&file, format!("{a}---\n{b}")).unwrap();
    let mut watched = Watched::start(&[dir.path()], options()).await;
    // The second breaks: it stays. The first is deleted on purpose while the second is still broken: it goes.
    fs::write(&file, format!("{a}{broken}")).unwrap();
    watched
        .until("broken", |w| w.report().contains("invalid YAML"))
        .await;
    assert_eq!(watched.hosts.len(), 2);
    fs::write(&file, broken).unwrap();
    watched.until("gone", |w| w.host("a").is_none()).await;
    assert_eq!(watched.host("b"), Some("b.example"));
    fs::write(&file, "# nothing left\n").unwrap();
    watched.until("all gone", |w| w.hosts.is_empty()).await;
}

#[tokio::test]
async fn half_written_files_are_waited_for() {
    use std::io::Write;
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("all.yaml");
    fs::write(
        &file,
        format!(
            "{}---\n{}",
            service("a", "a.example"),
            service("b", "b.example")
        ),
    )
    .unwrap();
    let mut watched = Watched::start(&[dir.path()], options()).await;
    // Truncated, then written in two pieces that are each valid.
    let mut writer = fs::File::create(&file).unwrap();
    for (name, host) in [("a", "a2.example"), ("b", "b2.example")] {
        writer
            .write_all(format!("---\n{}", service(name, host)).as_bytes())
            .unwrap();
        writer.flush().unwrap();
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    drop(writer);
    watched
        .until("written", |w| w.host("b") == Some("b2.example"))
        .await;
    assert_eq!(watched.host("a"), Some("a2.example"));
    assert_eq!(
        watched.deletes, 0,
        "an object must not vanish while its file is written"
    );
}

#[tokio::test]
async fn only_changed_documents_are_sent() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("many.yaml");
    let many = |host: &str| {
        (0..200).fold(String::new(), |text, i| {
            let host = if i == 7 {
                host.to_owned()
            } else {
                format!("h{i}.example")
            };
            text + "---\n" + &service(&format!("s{i}"), &host)
        })
    };
    fs::write(&file, many("before.example")).unwrap();
    let mut watched = Watched::start(&[dir.path()], options()).await;
    assert_eq!(watched.upserts, 200);
    fs::write(&file, many("after.example")).unwrap();
    watched
        .until("one", |w| w.host("s7") == Some("after.example"))
        .await;
    assert_eq!(watched.upserts, 201);
    // Moved down by a comment: nothing is said anew, but everything is elsewhere.
    let line = watched.lines["s100"];
    fs::write(&file, format!("# a comment\n{}", many("after.example"))).unwrap();
    watched
        .until("moved", |w| w.lines["s100"] == line + 1)
        .await;
    assert_eq!(watched.upserts, 201);
}

#[tokio::test]
async fn the_first_definition_counts() {
    let (one, two) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::write(one.path().join("b.yaml"), service("a", "first.example")).unwrap();
    fs::write(one.path().join("c.yaml"), service("a", "second.example")).unwrap();
    fs::write(two.path().join("a.yaml"), service("a", "third.example")).unwrap();
    let mut watched = Watched::start(&[one.path(), two.path()], options()).await;
    assert_eq!(watched.host("a"), Some("first.example"));
    assert_eq!(watched.diagnostics.len(), 2, "{}", watched.report());
    assert!(
        watched.report().contains("already defined at"),
        "{}",
        watched.report()
    );
    fs::remove_file(one.path().join("b.yaml")).unwrap();
    watched
        .until("second", |w| w.host("a") == Some("second.example"))
        .await;
    fs::remove_file(one.path().join("c.yaml")).unwrap();
    watched
        .until("third", |w| w.host("a") == Some("third.example"))
        .await;
    assert_eq!(watched.diagnostics, []);
    fs::write(one.path().join("z.yaml"), service("a", "fourth.example")).unwrap();
    watched
        .until("fourth", |w| w.host("a") == Some("fourth.example"))
        .await;
    assert_eq!(watched.deletes, 0);
}

#[tokio::test]
async fn links_may_go_in_circles() {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    symlink("..", dir.path().join("sub/up")).unwrap();
    symlink("loop", dir.path().join("loop")).unwrap();
    symlink("nowhere", dir.path().join("dangling.yaml")).unwrap();
    fs::write(dir.path().join("sub/a.yaml"), service("a", "a.example")).unwrap();
    symlink("sub/a.yaml", dir.path().join("same.yaml")).unwrap();
    let watched = Watched::start(&[dir.path(), dir.path()], options()).await;
    assert_eq!((watched.hosts.len(), watched.upserts), (1, 1));
    assert_eq!(watched.diagnostics, []);
}

#[tokio::test]
async fn a_replaced_directory_is_watched_again() {
    let parent = TempDir::new().unwrap();
    let dir = parent.path().join("config");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a.yaml"), service("a", "a.example")).unwrap();
    let mut watched = Watched::start(&[&dir], options()).await;
    // Gone: kept, with a finding.
    fs::rename(&dir, parent.path().join("old")).unwrap();
    watched
        .until("gone", |w| w.report().contains("cannot be read"))
        .await;
    assert_eq!(watched.host("a"), Some("a.example"));
    // Back, as another directory.
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a.yaml"), service("a", "b.example")).unwrap();
    watched
        .until("back", |w| w.host("a") == Some("b.example"))
        .await;
    assert_eq!(watched.diagnostics, []);
    fs::write(dir.join("a.yaml"), service("a", "c.example")).unwrap();
    watched
        .until("still watched", |w| w.host("a") == Some("c.example"))
        .await;
    // Deleted and made again at once, perhaps with the same inode.
    for round in 0..5 {
        let host = format!("d{round}.example");
        fs::remove_dir_all(&dir).unwrap();
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("a.yaml"), service("a", &host)).unwrap();
        watched
            .until("made again", |w| w.host("a") == Some(host.as_str()))
            .await;
        let host = format!("e{round}.example");
        fs::write(dir.join("a.yaml"), service("a", &host)).unwrap();
        watched
            .until("watched again", |w| w.host("a") == Some(host.as_str()))
            .await;
    }
}

#[tokio::test]
async fn the_rescan_is_a_safety_net() {
    let (dir, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let file = elsewhere.path().join("a.yaml");
    fs::write(&file, service("a", "a.example")).unwrap();
    symlink(&file, dir.path().join("a.yaml")).unwrap();
    let options = Options {
        rescan: Duration::from_millis(100),
        ..options()
    };
    let mut watched = Watched::start(&[dir.path()], options).await;
    // Nobody watches where the link leads.
    fs::write(&file, service("a", "b.example")).unwrap();
    watched
        .until("noticed", |w| w.host("a") == Some("b.example"))
        .await;
}

#[tokio::test]
async fn a_thousand_quick_changes_end_in_the_last() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.yaml");
    fs::write(&file, service("a", "start.example")).unwrap();
    let mut watched = Watched::start(&[dir.path()], options()).await;
    for i in 0..1000 {
        if i % 3 == 0 {
            let _ = fs::remove_file(&file);
        } else {
            fs::write(&file, service("a", &format!("h{i}.example"))).unwrap();
        }
    }
    fs::write(&file, service("a", "end.example")).unwrap();
    watched
        .until("end", |w| w.host("a") == Some("end.example"))
        .await;
    watched.quiet().await;
}

#[test]
fn a_missing_directory_is_an_error() {
    let dir = TempDir::new().unwrap();
    let missing = dir.path().join("missing");
    let error = DirectorySource::new(vec![missing.clone()], Options::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "configuration directory {} cannot be read",
            missing.display()
        )
    );
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = DirectorySource::new(vec![file], Options::default()).unwrap_err();
    assert!(error.to_string().ends_with("is not a directory"), "{error}");
}

#[test]
fn reading_once_feeds_a_store() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("a.yaml"), service("a", "a.example")).unwrap();
    let batch = DirectorySource::new(vec![dir.path().to_owned()], Options::default())
        .unwrap()
        .read();
    assert!(batch.synced);
    let mut store = Store::new();
    let source = store.register("files");
    let applied = store.apply(source, batch.changes);
    assert_eq!(applied.changed.len(), 1);
    let object: &Object = applied.snapshot.get(&applied.changed[0]).unwrap();
    assert!(object.origin.as_ref().unwrap().file.ends_with("a.yaml"));
}

async fn next(updates: &mut mpsc::Receiver<MeshUpdate>) -> MeshUpdate {
    timeout(Duration::from_secs(10), updates.recv())
        .await
        .expect("an update in time")
        .expect("still watched")
}

#[tokio::test]
async fn mesh_settings_are_watched() {
    let dir = TempDir::new().unwrap();
    let (mesh, networks) = (dir.path().join("mesh"), dir.path().join("networks.yaml"));
    fs::write(
        &mesh,
        "enableTracing: false\ntrustDomain: example.org\ndefaultConfig:\n  concurrency: 2\n",
    )
    .unwrap();
    let (sender, mut updates) = mpsc::channel(4);
    tokio::spawn(watch_mesh(
        Some(mesh.clone()),
        Some(networks.clone()),
        options(),
        sender,
    ));

    let update = next(&mut updates).await;
    let config = update.mesh.unwrap();
    assert_eq!(
        (config.trust_domain.as_str(), config.enable_tracing),
        ("example.org", false)
    );
    assert_eq!(config.root_namespace, "istio-system");
    let proxy = config.default_config.unwrap();
    assert_eq!((proxy.concurrency, proxy.status_port), (Some(2), 15020));
    assert!(update.networks.is_none());
    assert!(
        update.diagnostics[0].to_string().contains("networks.yaml"),
        "{:?}",
        update.diagnostics
    );

    fs::write(&mesh, "trustDomain: [").unwrap();
    let update = next(&mut updates).await;
    assert!(update.mesh.is_none());
    assert_eq!(update.diagnostics.len(), 2, "{:?}", update.diagnostics);

    fs::write(&networks, "networks:\n  n1:\n    endpoints: [{fromRegistry: Kubernetes}]\n    gateways: [{address: 1.2.3.4, port: 443}]\n").unwrap();
    let update = next(&mut updates).await;
    assert_eq!(
        update.networks.unwrap().networks["n1"].gateways[0].port,
        443
    );
    fs::write(&mesh, "trustDomain: other.example\n").unwrap();
    let update = next(&mut updates).await;
    assert_eq!(update.mesh.unwrap().trust_domain, "other.example");
    assert_eq!(update.diagnostics, []);
}
