//! Constant requests, and who answered them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::backend::Identity;
use crate::client::Client;

/// Answers kept for looking back.
const KEPT: usize = 20_000;
/// Failures kept word for word.
const FAILURES: usize = 20;

/// Where in an answer the part stands that we count by.
pub type Pick = fn(&Value) -> &Value;

/// One thread for each client, sending requests until dropped.
#[derive(Debug)]
pub struct Load {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stopped: AtomicBool,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    answered: u64,
    failed: u64,
    resent: u64,
    failures: Vec<String>,
    recent: VecDeque<(Instant, Identity)>,
    total: BTreeMap<(String, String), u64>,
}

/// What a load came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Requests answered with 200.
    pub answered: u64,
    /// All others.
    pub failed: u64,
    /// Those that a closed connection made a client send a second time; they count as answered if that worked.
    pub resent: u64,
    /// The first failures, word for word.
    pub failures: Vec<String>,
    /// Answers by version and instance.
    pub total: BTreeMap<(String, String), u64>,
}

impl Load {
    /// Sends `GET path` from each client, with a pause after each answer.
    pub fn start(clients: Vec<Client>, path: &str, pause: Duration, pick: Pick) -> Self {
        let shared = Arc::new(Shared {
            stopped: AtomicBool::new(false),
            book: Mutex::default(),
        });
        let threads = clients
            .into_iter()
            .map(|mut client| {
                let (shared, path) = (Arc::clone(&shared), path.to_owned());
                std::thread::spawn(move || {
                    while !shared.stopped.load(Ordering::Relaxed) {
                        let resent = client.resent();
                        let result = request(&mut client, &path, pick);
                        let mut book = shared.book();
                        book.note(result);
                        book.resent += client.resent() - resent;
                        drop(book);
                        std::thread::sleep(pause);
                    }
                })
            })
            .collect();
        Self { shared, threads }
    }

    /// Answers since a moment, by version and instance.
    pub fn since(&self, moment: Instant) -> BTreeMap<(String, String), u64> {
        let book = self.shared.book();
        let mut tally = BTreeMap::new();
        for (_, who) in book.recent.iter().rev().take_while(|(at, _)| *at >= moment) {
            *tally
                .entry((who.version.clone(), who.instance.clone()))
                .or_default() += 1;
        }
        tally
    }

    /// The share of a version among the last `count` answers since a moment; `None` while there are fewer.
    pub fn share(&self, version: &str, count: usize, moment: Instant) -> Option<f64> {
        let book = self.shared.book();
        let last: Vec<_> = book
            .recent
            .iter()
            .rev()
            .take(count)
            .take_while(|(at, _)| *at >= moment)
            .map(|(_, who)| who)
            .collect();
        let hits = last.iter().filter(|who| who.version == version).count();
        #[expect(clippy::cast_precision_loss, reason = "a few thousand at most")]
        (last.len() == count).then(|| hits as f64 / count as f64)
    }

    /// What it came to so far.
    pub fn report(&self) -> Report {
        let book = self.shared.book();
        Report {
            answered: book.answered,
            failed: book.failed,
            resent: book.resent,
            failures: book.failures.clone(),
            total: book.total.clone(),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ended = thread.join();
        }
    }
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("no panic while the book is open")
    }
}

impl Book {
    fn note(&mut self, result: Result<Identity, String>) {
        match result {
            Ok(who) => {
                self.answered += 1;
                *self
                    .total
                    .entry((who.version.clone(), who.instance.clone()))
                    .or_default() += 1;
                if self.recent.len() == KEPT {
                    self.recent.pop_front();
                }
                self.recent.push_back((Instant::now(), who));
            }
            Err(failure) => {
                self.failed += 1;
                if self.failures.len() < FAILURES {
                    self.failures.push(failure);
                }
            }
        }
    }
}

fn request(client: &mut Client, path: &str, pick: Pick) -> Result<Identity, String> {
    let response = client.get(path).map_err(|error| error.to_string())?;
    if response.status != 200 {
        return Err(format!("{} {}", response.status, response.text()));
    }
    let answer = response.json();
    let who = pick(&answer);
    let field = |name: &str| {
        who[name]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("no {name} in {answer}"))
    };
    Ok(Identity {
        service: field("service")?,
        version: field("version")?,
        instance: field("instance")?,
    })
}
