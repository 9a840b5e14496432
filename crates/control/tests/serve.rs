//! The built binary on a directory: starts, answers, follows changes, stops.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test drives processes, files and time"
)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const WAIT: Duration = Duration::from_secs(20);

const SERVICE: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.0.0.1], conditions: {ready: true}}]
";

const SECRET: &str = "\
apiVersion: v1
kind: Secret
metadata: {name: web-tls, namespace: shop}
type: kubernetes.io/tls
stringData: {tls.key: hunter2-in-the-clear}
data: {tls.crt: aHVudGVyMi1lbmNvZGVk}
";

/// A running server. Killed when dropped, so that a failed test leaves nothing behind.
struct Server {
    child: Child,
    dir: TempDir,
    http: SocketAddr,
    monitoring: SocketAddr,
    grpc: SocketAddr,
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pilotfish"));
    command.env_clear();
    command
}

fn get(address: SocketAddr, path: &str, headers: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect_timeout(&address, WAIT)?;
    stream.set_read_timeout(Some(WAIT))?;
    write!(
        stream,
        "GET {path} HTTP/1.0\r\nHost: {address}\r\n{headers}\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .unwrap_or(0);
    Ok((status, body.to_owned()))
}

impl Server {
    fn start(files: &[(&str, &str)]) -> Self {
        Self::start_with(
            files,
            "serve",
            &[
                "--config-dir",
                "--grpc-addr",
                "--http-addr",
                "--monitoring-addr",
            ],
        )
    }

    fn start_with(files: &[(&str, &str)], command: &str, flags: &[&str; 4]) -> Self {
        let dir = TempDir::new().unwrap();
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let (grpc, http, monitoring) = (free(), free(), free());
        let child = binary()
            .args([
                command,
                flags[0],
                &dir.path().display().to_string(),
                flags[1],
                &grpc.to_string(),
            ])
            .args([
                flags[2],
                &http.to_string(),
                flags[3],
                &monitoring.to_string(),
            ])
            .stderr(std::fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let server = Self {
            child,
            dir,
            http,
            monitoring,
            grpc,
        };
        server.wait("ready", || {
            get(server.http, "/ready", "").is_ok_and(|(status, _)| status == 200)
        });
        server
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    fn wait(&self, what: &str, done: impl Fn() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(
                start.elapsed() < WAIT,
                "{what} did not happen\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn page(&self, path: &str) -> Value {
        let (status, body) = get(self.monitoring, path, "").unwrap();
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{path}: {error}\n{body}"))
    }

    fn write(&self, name: &str, text: &str) {
        let scratch = self.dir.path().join("scratch");
        std::fs::write(&scratch, text).unwrap();
        std::fs::rename(&scratch, self.dir.path().join(name)).unwrap();
    }

    fn request(&self, args: &[&str]) -> Output {
        binary()
            .arg("request")
            .args(args)
            .args(["--monitoring-addr", &self.monitoring.to_string()])
            .output()
            .unwrap()
    }

    /// Ends it with a signal; the exit code.
    fn signal(&mut self, name: &str) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(
            Command::new("kill")
                .args(["-s", name, &id])
                .status()
                .unwrap()
                .success()
        );
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(start.elapsed() < WAIT, "does not stop\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn fails(command: &mut Command, code: i32) -> String {
    let output = command.stdout(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

#[test]
fn serves_pages_and_stops_on_sigterm() {
    let mut server = Server::start(&[("web.yaml", SERVICE), ("secret.yaml", SECRET)]);
    let services = server.page("/debug/registryz");
    assert_eq!(services[0]["hostname"], "web.shop.svc.cluster.local");
    let endpoints = server.page("/debug/endpointz");
    let shard = &endpoints["web.shop.svc.cluster.local"]["shop"]["Shards"]["Kubernetes/Kubernetes"];
    assert_eq!(shard[0]["Addresses"][0], "10.0.0.1");
    assert_eq!(server.page("/debug/connections")["totalClients"], 0);
    assert_eq!(server.page("/debug/syncz"), serde_json::json!([]));
    assert_eq!(server.page("/debug/push_status")["total"], 1);
    assert!(server.page("/debug/mesh")["rootNamespace"].is_string());
    for name in server.page("/debug/list").as_array().unwrap() {
        let path = format!("/debug/{}", name.as_str().unwrap());
        let (status, body) = get(server.monitoring, &path, "").unwrap();
        let of_one_proxy = ["config_dump", "edsz", "ndsz", "ecdsz"];
        let needs_proxy = of_one_proxy.contains(&path.trim_start_matches("/debug/"));
        assert_eq!(
            status,
            if needs_proxy { 400 } else { 200 },
            "{path}: {body}"
        );
        assert_eq!(
            get(server.http, &path, "").unwrap().0,
            status,
            "{path} on the HTTP port"
        );
        assert!(
            !body.contains("hunter2") && !body.contains("aHVudGVyMi"),
            "{path} shows a secret"
        );
    }
    let (status, body) = get(server.monitoring, "/debug/configz?kind=Secret", "").unwrap();
    assert!(
        status == 200 && body.contains("web-tls") && body.contains("[redacted]"),
        "{body}"
    );
    assert!(
        !body.contains("hunter2") && !body.contains("aHVudGVyMi"),
        "{body}"
    );
    assert_eq!(
        get(server.monitoring, "/debug/config_dump?proxyID=nobody", "")
            .unwrap()
            .0,
        404
    );

    let (_, index) = get(server.monitoring, "/debug/", "").unwrap();
    assert!(index.contains("<a href=\"/debug/syncz\">"), "{index}");
    let (_, page) = get(
        server.monitoring,
        "/debug/diagnostics",
        "Accept: text/html\r\n",
    )
    .unwrap();
    assert!(page.starts_with("<!doctype html>"), "{page}");
    let (_, metrics) = get(server.monitoring, "/metrics", "").unwrap();
    for line in [
        "pilot_services 1",
        "pilot_push_triggers{type=\"service\"} 1",
        "istiod_uptime_seconds ",
        "process_resident_memory_bytes ",
    ] {
        assert!(
            metrics.lines().any(|l| l.starts_with(line)),
            "{line}\n{metrics}"
        );
    }
    let begun = Instant::now();
    assert_eq!(server.signal("TERM"), Some(0), "{}", server.log());
    assert!(
        begun.elapsed() < Duration::from_secs(6),
        "{:?}",
        begun.elapsed()
    );
    let log = server.log();
    assert!(
        log.contains("ready in ")
            && log.contains("1 services, 1 endpoints")
            && log.contains("stopping on SIGTERM"),
        "{log}"
    );
    assert!(!log.contains("hunter2"), "{log}");
}

#[test]
fn follows_changes_and_reports_what_is_wrong() {
    let server = Server::start(&[("web.yaml", SERVICE)]);
    server.write(
        "more.yaml",
        &SERVICE
            .replace("web", "cart")
            .replace("10.96.0.10", "10.96.0.11"),
    );
    let hosts = || server.page("/debug/registryz").as_array().unwrap().len();
    server.wait("the new service", || hosts() == 2);
    std::fs::remove_file(server.dir.path().join("more.yaml")).unwrap();
    server.wait("its end", || hosts() == 1);
    assert!(server.page("/debug/push_status")["total"].as_u64().unwrap() >= 3);

    let broken = "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: bad, namespace: shop}\nspec: {hosts: [web], nonsense: 1}\n";
    server.write("bad.yaml", broken);
    let found = || {
        server
            .page("/debug/diagnostics")
            .to_string()
            .contains("nonsense")
    };
    server.wait("the finding", found);
    assert_eq!(hosts(), 1, "the rest goes on");
    server.wait("its line in the log", || server.log().contains("nonsense"));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(
        server.log().matches("nonsense").count(),
        1,
        "logged once\n{}",
        server.log()
    );
    std::fs::remove_file(server.dir.path().join("bad.yaml")).unwrap();
    server.wait("the end of it", || !found());
}

#[test]
fn istiods_flags_and_log_levels() {
    let flags = [
        "--configDir",
        "--grpcAddr",
        "--httpAddr",
        "--monitoringAddr",
    ];
    let mut server = Server::start_with(&[("web.yaml", SERVICE)], "discovery", &flags);
    assert!(TcpStream::connect(server.grpc).is_ok(), "xDS port is open");
    let done = server.request(&["GET", "/version"]);
    assert!(
        done.status.success() && String::from_utf8_lossy(&done.stdout).starts_with("pilotfish-")
    );
    let level = |scope: &str| {
        let all = server.page("/scopez");
        let found = all
            .as_array()
            .unwrap()
            .iter()
            .find(|s| s["name"] == scope)
            .unwrap();
        found["output_level"].as_str().unwrap().to_owned()
    };
    assert_eq!(level("config"), "info");
    assert!(
        server
            .request(&["PUT", "/scopez/config", "{\"output_level\":\"debug\"}"])
            .status
            .success()
    );
    assert!(
        server
            .request(&["POST", "/scopez", "push:warn,http:debug"])
            .status
            .success()
    );
    assert_eq!(
        (level("config"), level("push"), level("http")),
        ("debug".into(), "warn".into(), "debug".into())
    );
    let bad = server.request(&["PUT", "/scopez/nothing", "debug"]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&bad.stderr).contains("there is no scope"),
        "{bad:?}"
    );
    server.write("more.yaml", &SERVICE.replace("web", "cart"));
    server.wait("a debug line", || {
        server.log().contains("\tdebug\tconfig\t")
    });
    assert_eq!(server.signal("INT"), Some(0));
}

#[test]
fn a_bad_start_says_what_to_do() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().display().to_string();
    let serve = |args: &[&str]| {
        let mut command = binary();
        command.arg("serve").args(args);
        command
    };
    assert!(fails(&mut serve(&[]), 1).contains("--config-dir"));
    assert!(fails(&mut serve(&["--kubeconfig", "x"]), 1).contains("--kubeconfig"));
    assert!(fails(&mut serve(&["--config-dir", "/no/such"]), 1).contains("/no/such"));
    assert!(fails(&mut serve(&["--config-dri", &path]), 2).contains("--config-dir"));
    assert!(
        fails(
            &mut serve(&["--config-dir", &path, "--grpc-addr", "nonsense"]),
            1
        )
        .contains("--grpc-addr")
    );
    let text = fails(
        serve(&["--config-dir", &path]).env("PILOT_DEBOUNCE_AFTER", "soon"),
        1,
    );
    assert!(text.contains("PILOT_DEBOUNCE_AFTER"), "{text}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let text = fails(
        &mut serve(&["--config-dir", &path, "--grpc-addr", &address]),
        1,
    );
    assert!(
        text.contains(&address) && text.contains("--grpc-addr"),
        "{text}"
    );
    let text = fails(
        binary().args([
            "request",
            "GET",
            "/ready",
            "--monitoring-addr",
            "127.0.0.1:1",
        ]),
        1,
    );
    assert!(text.contains("--monitoring-addr"), "{text}");
}

#[test]
fn a_certificate_that_is_none_is_refused() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str, text: &str| {
        let path: &Path = &dir.path().join(name);
        std::fs::write(path, text).unwrap();
        path.display().to_string()
    };
    let (certificate, key) = (file("cert.pem", "nothing"), file("key.pem", "nothing"));
    let closed = [
        "--grpc-addr",
        "",
        "--http-addr",
        "",
        "--monitoring-addr",
        "",
        "--secure-grpc-addr",
        "127.0.0.1:0",
    ];
    let mut command = binary();
    command
        .args(["serve", "--config-dir", &dir.path().display().to_string()])
        .args(closed);
    command.args(["--tls-cert-file", &certificate, "--tls-key-file", &key]);
    let text = fails(&mut command, 1);
    assert!(
        text.contains("--tls-cert-file") && text.contains("cert.pem"),
        "{text}"
    );
}

#[test]
fn prints_its_version_and_help() {
    let run = |args: &[&str]| {
        let output = binary().args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(
        run(&["version", "--short"]).trim(),
        env!("CARGO_PKG_VERSION")
    );
    let json: Value = serde_json::from_str(&run(&["version", "-o", "json"])).unwrap();
    assert_eq!(json["clientVersion"]["version"], env!("CARGO_PKG_VERSION"));
    assert!(run(&["serve", "--help"]).contains("PILOT_DEBOUNCE_AFTER"));
    assert!(run(&["discovery", "--help"]).contains("--configDir"));
}
