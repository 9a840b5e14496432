//! Where a mesh is declared, and changed: a directory, or a cluster of its own.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use pilotfish_e2e::config::Workspace;
use pilotfish_e2e::kube::client::KubeClient;
use pilotfish_e2e::kube::{KubeServer, User};
use pilotfish_e2e::net::Net;
use pilotfish_e2e::tools;

use crate::mesh::{self, Edit, Size};

/// What stands for the path of a cluster's kubeconfig in a command.
pub const KUBECONFIG: &str = "{kubeconfig}";
/// The mesh configuration of a cluster, and the namespace that it is in.
const MESH: &str = "{apiVersion: v1, kind: ConfigMap, metadata: {name: istio, namespace: istio-system}, \
                    data: {mesh: 'rootNamespace: istio-system'}}\n";

/// Where. Dropping it ends the cluster.
#[derive(Debug)]
pub enum Place {
    /// Files, for servers that read them.
    Directory(PathBuf),
    /// A real etcd and kube-apiserver on loopback, for those that read nothing else.
    Cluster(Box<Cluster>),
}

/// Its fields are dropped in this order.
#[derive(Debug)]
pub struct Cluster {
    admin: KubeClient,
    kubeconfig: PathBuf,
    _server: KubeServer,
    _workspace: Workspace,
}

impl Place {
    /// The mesh as files below `scratch`.
    pub fn directory(size: &Size, scratch: &Path) -> Result<Self> {
        let directory = scratch.join("mesh");
        std::fs::create_dir(&directory)?;
        mesh::write(size, &directory).context("writing the mesh")?;
        Ok(Self::Directory(directory))
    }

    /// Starts a cluster and puts the mesh into it, which takes some seconds for a thousand services.
    pub async fn cluster(size: &Size) -> Result<Self> {
        let workspace = Workspace::new()?;
        let server = KubeServer::start(&Net::Host, "kube", &workspace)?;
        let admin = server.admin()?;
        admin.install_crds(&tools::crds()?)?;
        admin.apply(MESH)?;
        for (name, text) in size.files() {
            admin.apply(&text).context(name)?;
            // Here a large mesh can be interrupted.
            tokio::task::yield_now().await;
        }
        Ok(Self::Cluster(Box::new(Cluster {
            kubeconfig: server.kubeconfig(&User::admin())?,
            admin,
            _server: server,
            _workspace: workspace,
        })))
    }

    /// What stands for it in a command, and the path that takes its place.
    pub fn argument(&self) -> (&'static str, &Path) {
        match self {
            Self::Directory(directory) => ("{dir}", directory),
            Self::Cluster(cluster) => (KUBECONFIG, &cluster.kubeconfig),
        }
    }

    /// Makes a change. It counts from the rename of its file, or from the API server's word that it is made: what that takes
    /// to store it is not what is measured.
    pub fn apply(&self, edit: &Edit) -> Result<Instant> {
        let start = Instant::now();
        match (self, edit) {
            (Self::Directory(directory), edit) => {
                mesh::apply(edit, directory)?;
                return Ok(start);
            }
            (Self::Cluster(cluster), Edit::Write(_, text)) => {
                cluster.admin.apply(text)?;
            }
            (Self::Cluster(cluster), Edit::Remove(_, text)) => cluster.admin.remove_all(text)?,
        }
        Ok(Instant::now())
    }
}
