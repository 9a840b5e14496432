//! Network namespaces with an owner.
//!
//! A namespace is named `pilotfish-<pid>-<number>-<label>`. If the owner is killed before it can tidy up, the next one
//! to make a namespace removes what is left: the name says whose it was.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, Once};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::tools;

const PREFIX: &str = "pilotfish-";
/// Where `ip netns` keeps its handles.
const HANDLES: &str = "/run/netns";

type Job = Box<dyn FnOnce() + Send>;

/// A network namespace and the thread that lives in it. Dropping it removes the namespace.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    jobs: Mutex<Option<Sender<Job>>>,
    keeper: Option<JoinHandle<()>>,
}

impl Namespace {
    /// Makes a namespace with loopback up and nothing else.
    pub fn new(label: &str) -> Result<Self> {
        static SWEPT: Once = Once::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        SWEPT.call_once(sweep);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}{}-{number}-{label}", std::process::id());
        ip(&["netns", "add", &name])?;
        let namespace = Self::enter(&name).inspect_err(|_| remove(&name))?;
        ip(&["-n", &name, "link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    fn enter(name: &str) -> Result<Self> {
        let handle = File::open(Path::new(HANDLES).join(name)).context("open the namespace")?;
        let (jobs, inbox) = channel::<Job>();
        let (entered, result) = channel();
        let keeper = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                let moved =
                    move_into_link_name_space(handle.as_fd(), Some(LinkNameSpaceType::Network));
                let inside = moved.is_ok();
                let _listening = entered.send(moved);
                if inside {
                    for job in inbox {
                        job();
                    }
                }
            })?;
        result
            .recv()
            .context("the keeper ended")?
            .context("enter the namespace")?;
        Ok(Self {
            name: name.to_owned(),
            jobs: Mutex::new(Some(jobs)),
            keeper: Some(keeper),
        })
    }

    /// Its name, as `ip netns` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `job` on the keeper's thread. Jobs of one namespace run one after the other, so they must be short.
    pub fn run<T: Send + 'static>(&self, job: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        let wrapped: Job = Box::new(move || {
            let _waiting = done.send(job());
        });
        self.jobs
            .lock()
            .expect("a job panicked")
            .as_ref()
            .expect("open until dropped")
            .send(wrapped)
            .expect("the keeper lives as long as the namespace");
        result.recv().expect("the keeper runs every job")
    }

    /// `ip -n <this> ...`
    pub fn ip(&self, args: &[&str]) -> Result<()> {
        ip(&[&["-n", self.name.as_str()], args].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // The keeper ends when nobody can send it jobs; what it started ends with it.
        if let Ok(mut jobs) = self.jobs.lock() {
            jobs.take();
        }
        if let Some(keeper) = self.keeper.take() {
            let _ended = keeper.join();
        }
        remove(&self.name);
    }
}

/// Runs `ip` of iproute2.
pub(crate) fn ip(args: &[&str]) -> Result<()> {
    let program =
        tools::on_path("ip").context("ip (iproute2) is not installed: run scripts/prepare")?;
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .context("run ip")?;
    if !output.status.success() {
        bail!(
            "ip {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

fn remove(name: &str) {
    if let Err(error) = ip(&["netns", "del", name]) {
        eprintln!("could not remove namespace {name}: {error:#}");
    }
}

/// Removes namespaces whose owner is dead. Their processes died with the owner's threads.
fn sweep() {
    let Ok(entries) = fs::read_dir(HANDLES) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name
            .strip_prefix(PREFIX)
            .and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            remove(&name);
        }
    }
}
