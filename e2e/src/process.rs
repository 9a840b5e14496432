//! Child processes that cannot outlive us, with their output in a file.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::net::Net;
use crate::wait;

/// How much of a log is shown when something went wrong.
const TAIL: u64 = 6_000;

/// A running program. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

/// What to run, where, and as whom.
#[derive(Debug)]
pub struct Start<'a> {
    /// For messages and the name of the log.
    pub name: &'a str,
    /// The program.
    pub program: &'a Path,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables of its environment, besides ours.
    pub environment: BTreeMap<String, String>,
    /// Its group, where interception tells the proxy from the application by it.
    pub gid: Option<u32>,
    /// Where its sockets are.
    pub net: &'a Net,
    /// The folder of its log.
    pub logs: &'a Path,
}

impl Process {
    /// Starts a program with its output appended to `<logs>/<name>.log`.
    pub fn start(start: Start<'_>) -> Result<Self> {
        let log = start.logs.join(format!("{}.log", start.name));
        let output = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("open {}", log.display()))?;
        // The kernel ends the child when the thread that started it ends, however we die: that thread is the
        // namespace's keeper, or the test itself. std can set this only with unsafe code; setpriv can without.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(start.program)
            .args(start.args)
            .envs(start.environment)
            .stdin(Stdio::null())
            .stdout(output.try_clone().context("second handle of the log")?)
            .stderr(output)
            // Ctrl-C reaches the whole foreground group; we stop our children in order ourselves.
            .process_group(0);
        if let Some(gid) = start.gid {
            command.gid(gid);
        }
        let child = start
            .net
            .run(move || command.spawn())
            .with_context(|| format!("start {}", start.program.display()))?;
        Ok(Self {
            name: start.name.to_owned(),
            child,
            log,
        })
    }

    /// The operating system's number of it.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its resident memory in bytes.
    pub fn memory(&self) -> Result<u64> {
        self.status("VmRSS:")
    }

    /// The most resident memory it ever had, in bytes.
    pub fn peak_memory(&self) -> Result<u64> {
        self.status("VmHWM:")
    }

    /// A field of its status that the kernel gives in kB.
    fn status(&self, name: &str) -> Result<u64> {
        let path = format!("/proc/{}/status", self.pid());
        let status = fs::read_to_string(&path).with_context(|| path.clone())?;
        let field = status.lines().find_map(|line| line.strip_prefix(name));
        let number = field.and_then(|field| field.split_whitespace().next()?.parse::<u64>().ok());
        Ok(number.with_context(|| format!("no {name} in {path}"))? * 1024)
    }

    /// Its time on processors until now, user and system. The kernel counts in ticks.
    pub fn processor_time(&self) -> Result<Duration> {
        let path = format!("/proc/{}/stat", self.pid());
        let stat = fs::read_to_string(&path).with_context(|| path.clone())?;
        // The second field is the name in brackets, which may have anything in it.
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        let ticks = |index: usize| fields.split_whitespace().nth(index)?.parse::<u64>().ok();
        let ticks = ticks(11)
            .zip(ticks(12))
            .with_context(|| format!("no times in {path}"))?;
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Ok(Duration::from_millis(
            (ticks.0 + ticks.1) * 1000 / per_second,
        ))
    }

    /// An error with the end of the log if it is no longer running.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait().context("look at a child")? {
            None => Ok(()),
            Some(status) => bail!("{} ended with {status}\n{}", self.name, self.tail()),
        }
    }

    /// Waits for `probe`; gives up at once, with the log, if the process ends.
    pub fn wait_for<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut probe: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let mut ended = None;
        let waited = wait::until(what, limit, || {
            if let Err(error) = self.check() {
                ended = Some(error);
                return Ok(None);
            }
            probe().map(Some)
        });
        match (waited, ended) {
            (_, Some(error)) => Err(error),
            (Ok(Some(value)), _) => Ok(value),
            (Ok(None), None) => unreachable!("only a process that ended gives no value"),
            (Err(error), _) => bail!("{error:#}\n{}", self.tail()),
        }
    }

    /// The end of its output.
    pub fn tail(&self) -> String {
        let text = read_tail(&self.log).unwrap_or_else(|error| format!("(no log: {error})"));
        format!("--- {} (end of its log)\n{text}---", self.name)
    }

    /// Asks it to end (SIGTERM), and kills it after `limit`.
    pub fn stop(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(Signal::TERM);
        let start = Instant::now();
        while start.elapsed() < limit {
            if let Some(status) = self.child.try_wait().context("look at a child")? {
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.child.kill().context("kill a child")?;
        self.child.wait().context("wait for a child")
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // An error means that it is gone already.
            let _gone = kill_process(pid, signal);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// The end of a log.
pub(crate) fn read_tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL)))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
