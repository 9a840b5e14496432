//! Inputs that others wrote mean the same, byte by byte, whether they are loaded through an API server or read from a
//! directory. `INPUTS` names a directory of folders with `input.yaml`, `proxies.yaml` and perhaps `mesh.yaml`, `networks.yaml`
//! and `env.yaml`; beside it are `cluster.yaml`, which is part of every input, and `default-mesh.yaml`. `scripts/test` runs
//! it where the oracle is. `ONLY` is a part of the names of the folders to compare.
//!
//! The API server writes creation times, which decide who comes first. Where it has made an input within one second, as an
//! input without times wants it, the files are read as they are; otherwise they say the times that it wrote, and the input's
//! line says `dated`.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::control::{ControlPlane, Options, Ports};
use pilotfish_e2e::kube::{KubeServer, User};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::xds::{self, Reader, Resources};
use pilotfish_e2e::{case, tools};
use serde_json::{Value, json};

const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// So many differences of an input are said in words.
const SHOWN: usize = 5;

#[test]
#[ignore = "needs INPUTS"]
fn a_cluster_means_the_same_as_a_directory_to_inputs_of_others() {
    case::on_loopback(all_inputs);
}

fn all_inputs(workspace: &Workspace) -> Result<()> {
    let root = PathBuf::from(env::var_os("INPUTS").context("INPUTS names a directory")?);
    let only = env::var("ONLY").unwrap_or_default();
    let folders = fs::read_dir(&root).with_context(|| root.display().to_string())?;
    let mut folders: Vec<PathBuf> = folders
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<std::io::Result<_>>()?;
    folders.retain(|folder| {
        folder.join("input.yaml").is_file() && folder.to_string_lossy().contains(&only)
    });
    folders.sort();
    ensure!(!folders.is_empty(), "no inputs in {}", root.display());

    let server = KubeServer::start(&Net::Host, "kube", workspace)?;
    server.admin()?.install_crds(&tools::crds()?)?;
    let mut bench = Bench {
        workspace,
        kubeconfig: server.kubeconfig(&User::admin())?,
        around: root.parent().context("a directory above")?.to_owned(),
        reader: Reader::new()?,
    };
    let empty = server.contents()?;
    let mut total = Score::default();
    for folder in &folders {
        let begin = Instant::now();
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let score = bench
            .compare(&server, folder)
            .with_context(|| format!("input {name}"))?;
        eprintln!("{name:32} {score}  [{:.1?}]", begin.elapsed());
        for difference in score.differences.iter().take(SHOWN) {
            eprintln!("    {difference}");
        }
        total.add(score);
        server.put_back(&empty)?;
    }
    eprintln!("{} inputs: {total}", folders.len());
    ensure!(total.all > 0, "nothing was compared");
    ensure!(total.differences.is_empty(), "they do not mean the same");
    Ok(())
}

/// How much was the same.
#[derive(Debug, Default)]
struct Score {
    equal: usize,
    all: usize,
    /// Inputs that files have with the times of the API server.
    dated: usize,
    differences: Vec<String>,
}

impl Score {
    fn add(&mut self, other: Self) {
        self.equal += other.equal;
        self.all += other.all;
        self.dated += other.dated;
        self.differences.extend(other.differences);
    }
}

impl std::fmt::Display for Score {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.all == 0 {
            return write!(f, "its proxies are given nothing");
        }
        write!(f, "{} of {} resources byte-equal", self.equal, self.all)?;
        if self.dated > 0 {
            write!(f, " (dated: {})", self.dated)?;
        }
        match self.differences.len() {
            0 => Ok(()),
            count => write!(f, ", {count} DIFFERENT"),
        }
    }
}

struct Bench<'a> {
    workspace: &'a Workspace,
    kubeconfig: PathBuf,
    /// Where the cluster that is part of every input is, and the mesh configuration of those without one.
    around: PathBuf,
    reader: Reader,
}

impl Bench<'_> {
    fn compare(&mut self, server: &KubeServer, folder: &Path) -> Result<Score> {
        let mesh = Some(folder.join("mesh.yaml")).filter(|file| file.is_file());
        let mesh = mesh.unwrap_or_else(|| self.around.join("default-mesh.yaml"));
        let networks = Some(folder.join("networks.yaml")).filter(|file| file.is_file());
        let environment = read_environment(&folder.join("env.yaml"))?;

        // Through the API server.
        let mut objects = parse(&folder.join("input.yaml"))?;
        objects.extend(parse(&self.around.join("cluster.yaml"))?);
        in_order_of_precedence(&mut objects);
        let mut data = json!({"mesh": fs::read_to_string(&mesh)?});
        if let Some(networks) = &networks {
            data["meshNetworks"] = fs::read_to_string(networks)?.into();
        }
        let settings = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "istio", "namespace": "istio-system"}, "data": data});
        let admin = server.admin()?;
        admin.apply_objects(objects.iter().cloned().chain([settings]).collect())?;

        // The same from files.
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let place = self.workspace.place(&format!("input-{name}"));
        fs::create_dir_all(&place)?;
        let times = admin.creation_times(&objects)?;
        let is_dated = !in_one_second(&objects, &times);
        if is_dated {
            for (object, time) in objects.iter_mut().zip(times) {
                object["metadata"]["creationTimestamp"] = time;
            }
            let documents: Vec<String> = objects.iter().map(Value::to_string).collect();
            fs::write(place.join("input.yaml"), documents.join("\n---\n"))?;
        } else {
            fs::copy(folder.join("input.yaml"), place.join("input.yaml"))?;
            fs::copy(self.around.join("cluster.yaml"), place.join("cluster.yaml"))?;
        }
        let mut flags = vec!["--mesh-config".to_owned(), mesh.display().to_string()];
        if let Some(networks) = &networks {
            flags.extend(["--mesh-networks".to_owned(), networks.display().to_string()]);
        }
        let mut files = self.launch(Some(&place), flags, &environment)?;
        let flags = vec![
            "--kubeconfig".to_owned(),
            self.kubeconfig.display().to_string(),
            // What would be written is what both of them know already.
            "--kube-writes=none".to_owned(),
        ];
        let mut cluster = self.launch(None, flags, &environment)?;
        files.wait_ready()?;
        cluster.wait_ready()?;

        let proxies: Value =
            serde_saphyr::from_str(&fs::read_to_string(folder.join("proxies.yaml"))?)?;
        let proxies = proxies["proxies"].as_array().context("no proxies")?;
        let mut score = Score {
            dated: usize::from(is_dated),
            ..Score::default()
        };
        for proxy in proxies {
            let who = proxy["name"].as_str().unwrap_or_default();
            let (node, ask) = (&proxy["node"], &proxy["ask"]);
            let ours = self.reader.dump(files.xds(), node, ask)?;
            let theirs = self.reader.dump(cluster.xds(), node, ask)?;
            score.add(compare(who, &ours, &theirs)?);
        }
        Ok(score)
    }

    fn launch(
        &self,
        config: Option<&Path>,
        mut flags: Vec<String>,
        environment: &BTreeMap<String, String>,
    ) -> Result<ControlPlane> {
        // Both are given the secrets of their namespaces; nobody has a certificate here.
        flags.push("--insecure-trust-local-proxies".to_owned());
        flags.extend(["--secure-grpc-addr".to_owned(), String::new()]);
        let options = Options {
            flags,
            environment: environment.clone(),
        };
        let ports = Ports::free(&Net::Host)?;
        let logs = self.workspace.logs();
        ControlPlane::launch(&Net::Host, LOOPBACK, ports, config, &logs, options)
    }
}

fn parse(file: &Path) -> Result<Vec<Value>> {
    serde_saphyr::from_multiple(&fs::read_to_string(file)?)
        .with_context(|| file.display().to_string())
}

fn read_environment(file: &Path) -> Result<BTreeMap<String, String>> {
    if !file.is_file() {
        return Ok(BTreeMap::new());
    }
    let variables: BTreeMap<String, Value> = serde_saphyr::from_str(&fs::read_to_string(file)?)?;
    let text = |value: Value| match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    Ok(variables.into_iter().map(|(k, v)| (k, text(v))).collect())
}

/// Of objects without creation time, all count as made in one second, and their names decide who comes first. The API
/// server may need longer than a second; made in the order of their names, they come in the same order all the same, but
/// for ServiceEntries, whose hosts are the names of their services.
fn in_order_of_precedence(objects: &mut [Value]) {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    objects.sort_by_cached_key(|object| {
        let metadata = &object["metadata"];
        (text(&metadata["name"]), text(&metadata["namespace"]))
    });
}

/// Whether the API server made those objects in one second that say nothing of a time. Otherwise it has decided who is older,
/// and files have to say the same.
fn in_one_second(objects: &[Value], times: &[Value]) -> bool {
    let undated = objects.iter().zip(times).filter(|(object, _)| {
        object["metadata"].get("creationTimestamp").is_none() && !is_of_the_server(object)
    });
    let distinct: BTreeSet<&str> = undated.filter_map(|(_, time)| time.as_str()).collect();
    distinct.len() <= 1
}

/// Made by the API server when it starts, and so the oldest of all.
fn is_of_the_server(object: &Value) -> bool {
    object["kind"] == "Service" && object["metadata"]["name"] == "kubernetes"
}

fn compare(who: &str, files: &Resources, cluster: &Resources) -> Result<Score> {
    let mut score = Score::default();
    let more = cluster.keys().filter(|key| !files.contains_key(*key));
    for (kind, name) in files.keys().chain(more) {
        let key = &(*kind, name.clone());
        score.all += 1;
        let differs = match (files.get(key), cluster.get(key)) {
            (Some(a), Some(b)) if a == b => {
                score.equal += 1;
                continue;
            }
            (Some(a), Some(b)) => {
                let (a, b) = (xds::to_json(kind, a)?, xds::to_json(kind, b)?);
                first_difference("", &a, &b).unwrap_or_else(|| "only in its bytes".to_owned())
            }
            (Some(_), None) => "the cluster lacks it".to_owned(),
            (None, _) => "the directory lacks it".to_owned(),
        };
        score
            .differences
            .push(format!("{who}: {kind} {name}: {differs}"));
    }
    Ok(score)
}

/// Where two values differ first.
fn first_difference(path: &str, files: &Value, cluster: &Value) -> Option<String> {
    let nothing = Value::Null;
    match (files, cluster) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            keys.into_iter().find_map(|key| {
                let path = format!("{path}.{key}");
                let value = |map: &serde_json::Map<String, Value>| map.get(key).cloned();
                first_difference(
                    &path,
                    &value(a).unwrap_or_default(),
                    &value(b).unwrap_or_default(),
                )
            })
        }
        (Value::Array(a), Value::Array(b)) => (0..a.len().max(b.len())).find_map(|index| {
            let path = format!("{path}[{index}]");
            let (a, b) = (a.get(index), b.get(index));
            first_difference(&path, a.unwrap_or(&nothing), b.unwrap_or(&nothing))
        }),
        (a, b) if a == b => None,
        (a, b) => Some(format!("{path}: {a} in files, {b} in the cluster")),
    }
}
