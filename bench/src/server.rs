//! A server as a process: started on free ports of loopback, waited for, looked at through `/proc`, killed in the end.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::place::{self, Place};

const START: Duration = Duration::from_mins(2);
const POLL: Duration = Duration::from_millis(5);

/// How to start one. The words of `command` may have `{dir}` or `{kubeconfig}`, `{grpc}`, `{http}`, `{monitoring}` and `{control}`
/// in them.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What reports call it.
    pub name: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Variables added to the environment.
    pub env: Vec<(String, String)>,
}

impl Launch {
    /// `pilotfish serve` of that binary, on a directory or on a cluster.
    pub fn pilotfish(binary: &Path, on_cluster: bool, env: Vec<(String, String)>) -> Self {
        let source = if on_cluster {
            "--kubeconfig {kubeconfig}"
        } else {
            "--config-dir {dir}"
        };
        let arguments = format!(
            "serve {source} --grpc-addr 127.0.0.1:{{grpc}} --http-addr 127.0.0.1:{{http}} \
             --monitoring-addr 127.0.0.1:{{monitoring}}"
        );
        Self::words("pilotfish", binary, &arguments, env)
    }

    /// istiod's binary, doing what ours does too: no certificates, no webhooks, no TLS, no Gateway API. It reads nothing but
    /// clusters.
    pub fn istiod(binary: &Path) -> Self {
        let arguments = "discovery --kubeconfig {kubeconfig} --grpcAddr 127.0.0.1:{grpc} --httpAddr 127.0.0.1:{http} \
                         --monitoringAddr 127.0.0.1:{monitoring} --ctrlz_port {control} --httpsAddr= --secureGRPCAddr= \
                         --kubernetesApiQPS 1000 --kubernetesApiBurst 2000";
        let env = [
            ("POD_NAME", "istiod-1"),
            ("POD_NAMESPACE", "istio-system"),
            ("CLUSTER_ID", "Kubernetes"),
            ("ENABLE_CA_SERVER", "false"),
            ("PILOT_ENABLE_GATEWAY_API", "false"),
            ("INJECTION_WEBHOOK_CONFIG_NAME", ""),
            ("VALIDATION_WEBHOOK_CONFIG_NAME", ""),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Self::words("istiod", binary, arguments, env.into())
    }

    fn words(name: &str, binary: &Path, arguments: &str, env: Vec<(String, String)>) -> Self {
        let mut command = vec![binary.display().to_string()];
        command.extend(arguments.split_whitespace().map(str::to_owned));
        Self {
            name: name.into(),
            command,
            env,
        }
    }

    /// Any other server, by a line of words.
    pub fn peer(line: &str) -> Self {
        Self {
            name: "peer".into(),
            command: line.split_whitespace().map(str::to_owned).collect(),
            env: Vec::new(),
        }
    }

    /// It reads a cluster, not a directory.
    pub fn reads_cluster(&self) -> bool {
        self.command
            .iter()
            .any(|word| word.contains(place::KUBECONFIG))
    }
}

/// The absolute path of a program that somebody named: a bare name would be looked for here and started from `PATH`.
pub fn program(said_by: &str, file: &Path) -> Result<PathBuf> {
    let wanted = std::path::absolute(file)?;
    let path = wanted.canonicalize().with_context(|| {
        let wanted = wanted.display();
        format!("{said_by}: {wanted} (name the binary by its path; PATH is not searched)")
    })?;
    let found = path.metadata()?;
    ensure!(
        found.is_file() && found.permissions().mode() & 0o111 != 0,
        "{said_by}: {} is not executable: name the binary by its path",
        wanted.display()
    );
    Ok(path)
}

/// The control plane built beside this program, or `$PILOTFISH`.
pub fn built() -> Result<PathBuf> {
    if let Some(file) = std::env::var_os("PILOTFISH") {
        return program("$PILOTFISH", Path::new(&file));
    }
    let exe = std::env::current_exe().context("where this program lies")?;
    let beside = exe.with_file_name("pilotfish");
    if !beside.is_file() {
        bail!(
            "{} is missing: build it (cargo build --release -p pilotfish) or name one with --server",
            beside.display()
        );
    }
    Ok(beside)
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    child: Child,
    log: PathBuf,
    /// Where it serves xDS.
    pub grpc: SocketAddr,
    /// How long it took to be ready.
    pub ready: Duration,
}

/// That many ports of loopback which nobody listens on, all different.
fn free_ports<const N: usize>() -> Result<[SocketAddr; N]> {
    let mut held = Vec::new();
    let mut ports = [SocketAddr::from(([127, 0, 0, 1], 0)); N];
    for port in &mut ports {
        let listener = TcpListener::bind(*port).context("a free port")?;
        *port = listener.local_addr()?;
        held.push(listener);
    }
    Ok(ports)
}

impl Server {
    /// Starts it on a mesh and waits until `/ready` answers 200. `scratch` is for its log.
    pub async fn start(launch: &Launch, place: &Place, scratch: &Path) -> Result<Self> {
        let [grpc, http, monitoring, control] = free_ports()?;
        let (mesh, path) = place.argument();
        let fill = |word: &String| {
            word.replace(mesh, &path.display().to_string())
                .replace("{grpc}", &grpc.port().to_string())
                .replace("{http}", &http.port().to_string())
                .replace("{monitoring}", &monitoring.port().to_string())
                .replace("{control}", &control.port().to_string())
        };
        let words: Vec<String> = launch.command.iter().map(fill).collect();
        let mut server = Self::spawn(&launch.name, &words, &launch.env, grpc, scratch)?;
        let otherwise = format!("{} is not ready", launch.name);
        server.wait(&otherwise, || is_ready(http)).await?;
        Ok(server)
    }

    /// Starts the server of the limit, which is this program again, and waits until it listens.
    pub async fn start_limit(recording: &Path, scratch: &Path) -> Result<Self> {
        let [grpc] = free_ports()?;
        let exe = std::env::current_exe().context("where this program lies")?;
        let words = [
            exe.display().to_string(),
            "limit".into(),
            recording.display().to_string(),
            grpc.to_string(),
        ];
        let mut server = Self::spawn("limit", &words, &[], grpc, scratch)?;
        let otherwise = "the server of the limit does not listen";
        server
            .wait(otherwise, || TcpStream::connect(grpc).is_ok())
            .await?;
        Ok(server)
    }

    fn spawn(
        name: &str,
        words: &[String],
        env: &[(String, String)],
        grpc: SocketAddr,
        scratch: &Path,
    ) -> Result<Self> {
        let (program, arguments) = words.split_first().context("an empty command")?;
        let log = scratch.join(format!("{name}.log"));
        let output = File::create(&log)?;
        let child = Command::new(program)
            .args(arguments)
            .envs(env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("starting {program}"))?;
        Ok(Self {
            child,
            log,
            grpc,
            ready: Duration::ZERO,
        })
    }

    async fn wait(&mut self, otherwise: &str, done: impl Fn() -> bool) -> Result<()> {
        let start = Instant::now();
        while !done() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{otherwise}: it ended with {status}\n{}", self.log_end());
            }
            if start.elapsed() > START {
                bail!("{otherwise} after {START:?}\n{}", self.log_end());
            }
            tokio::time::sleep(POLL).await;
        }
        self.ready = start.elapsed();
        Ok(())
    }

    /// The last lines of its log.
    pub fn log_end(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// What it has used and holds.
    pub fn usage(&self) -> Result<Usage> {
        Usage::of(&self.child.id().to_string())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn is_ready(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<bool> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        write!(stream, "GET /ready HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer.split(' ').nth(1) == Some("200"))
    };
    ask().unwrap_or(false)
}

/// What a process has used and holds, as the kernel accounts for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// Time on a processor, user and system. The kernel counts in ticks of 10 ms.
    pub cpu: Duration,
    /// Resident memory in kB.
    pub rss_kb: u64,
    /// The most there ever was.
    pub peak_kb: u64,
}

impl Usage {
    /// Of a process by its id, or of `self`.
    pub fn of(process: &str) -> Result<Self> {
        let read = |file: &str| {
            std::fs::read_to_string(format!("/proc/{process}/{file}"))
                .with_context(|| format!("/proc/{process}/{file}: has the process ended?"))
        };
        let ticks = rustix::param::clock_ticks_per_second();
        Self::parse(&read("stat")?, &read("status")?, ticks)
            .with_context(|| format!("/proc/{process} is not as expected"))
    }

    fn parse(stat: &str, status: &str, ticks_per_second: u64) -> Option<Self> {
        // The second field is the name in brackets, which may have spaces and brackets in it.
        let (_, fields) = stat.rsplit_once(')')?;
        let time = |n| -> Option<u64> { fields.split_whitespace().nth(n)?.parse().ok() };
        let memory = |key: &str| -> Option<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(key))?;
            line.split_whitespace().next()?.parse().ok()
        };
        let ticks = time(11)? + time(12)?;
        Some(Self {
            cpu: Duration::from_millis(ticks * 1000 / ticks_per_second.max(1)),
            rss_kb: memory("VmRSS:")?,
            peak_kb: memory("VmHWM:")?,
        })
    }
}

/// Makes room for that many connections; an error says what to do.
pub fn allow_connections(connections: usize) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    )
    .context("raising the limit of open files")?;
    let needed = connections as u64 + 100;
    if let Some(most) = limit.maximum.filter(|most| *most < needed) {
        bail!(
            "{connections} proxies need {needed} open files and the limit is {most}: raise it with ulimit -Hn"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_read_from_proc() {
        let stat =
            "42 (a (strange) name) S 1 42 42 0 -1 4194304 5 0 0 0 150 25 0 0 20 0 3 0 100 1 2";
        let status = "Name:\ta\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n";
        let usage = Usage::parse(stat, status, 100).unwrap();
        assert_eq!(
            usage,
            Usage {
                cpu: Duration::from_millis(1750),
                rss_kb: 1024,
                peak_kb: 2048
            }
        );
        assert!(Usage::parse("", status, 100).is_none());
        assert!(Usage::of("self").unwrap().rss_kb > 0);
    }

    #[test]
    fn a_program_is_named_by_its_path() {
        let error = program("--istiod", Path::new("sh")).unwrap_err();
        assert!(error.to_string().contains("PATH is not searched"));
        assert!(
            program("--istiod", Path::new("/bin/sh"))
                .unwrap()
                .is_absolute()
        );
        // Tests run in the folder of their crate.
        let folder = program("--istiod", Path::new("src")).unwrap_err();
        let text = program("--istiod", Path::new("src/lib.rs")).unwrap_err();
        for error in [folder, text] {
            assert!(error.to_string().contains("is not executable"), "{error}");
        }
    }

    #[test]
    fn ports_differ() {
        let [a, b, c] = free_ports().unwrap();
        assert!(a != b && b != c && a != c);
    }
}
