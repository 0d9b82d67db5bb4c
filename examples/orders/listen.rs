//! Binds what the command line names.

use std::net::SocketAddr;

use winddown::server::Listener;
use winddown::{BoxError, ShutdownCoordinator};

use crate::options::{Listen, Options};

pub async fn bind(shutdown: &mut ShutdownCoordinator, options: &Options) -> Result<Vec<Listener>, BoxError> {
    let mut listeners = Vec::new();
    for listen in &options.listen {
        match listen {
            Listen::Tcp(address) => {
                let bound = tcp(*address, options.reuse_port);
                listeners.push(shutdown.start(format!("listener on {address}"), bound).await?);
            }
            Listen::Unix(path) => listeners.push(system::unix(shutdown, path).await?),
            Listen::Systemd => listeners.extend(system::handed_over()?),
        }
    }
    Ok(listeners)
}

async fn tcp(address: SocketAddr, reuse_port: bool) -> std::io::Result<Listener> {
    if reuse_port {
        Listener::bind_reuse_port(address)
    } else {
        tokio::net::TcpListener::bind(address).await.map(Into::into)
    }
}

#[cfg(unix)]
mod system {
    use std::io::{self, ErrorKind};
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    use std::path::Path;

    use tokio::net::{UnixListener, UnixStream};
    use winddown::server::{self, Listener};
    use winddown::{BoxError, Phase, ShutdownCoordinator};

    pub async fn unix(shutdown: &mut ShutdownCoordinator, path: &Path) -> Result<Listener, BoxError> {
        let what = format!("listener on unix:{}", path.display());
        let listener = shutdown.start(what, take_over(path)).await?;
        let (ours, path) = (identity(path)?, path.to_owned());
        // Nobody listens any more. Who has taken the path over in the meantime keeps it.
        shutdown.on(Phase::Drain, format!("socket {}", path.display()), async move |_| {
            if identity(&path).is_ok_and(|found| found == ours) {
                std::fs::remove_file(&path)?;
            }
            Ok::<_, io::Error>(())
        });
        Ok(listener.into())
    }

    pub fn handed_over() -> Result<Vec<Listener>, BoxError> {
        let listeners = server::listeners_from_env().map_err(|error| format!("--listen systemd: {error}"))?;
        if listeners.is_empty() {
            return Err(
                "--listen systemd: nothing was handed over; LISTEN_FDS and LISTEN_PID say what is".into()
            );
        }
        Ok(listeners)
    }

    /// Binds, also where a process that was killed has left its socket; not where one answers, or to what is no socket.
    async fn take_over(path: &Path) -> io::Result<UnixListener> {
        let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
        if is_socket {
            let answer = UnixStream::connect(path).await;
            if answer.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused) {
                std::fs::remove_file(path)?;
            }
        }
        UnixListener::bind(path)
    }

    fn identity(path: &Path) -> io::Result<(u64, u64)> {
        std::fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
    }
}

#[cfg(not(unix))]
mod system {
    use std::path::Path;

    use winddown::server::Listener;
    use winddown::{BoxError, ShutdownCoordinator};

    pub async fn unix(_: &mut ShutdownCoordinator, _: &Path) -> Result<Listener, BoxError> {
        Err("--listen unix: needs Unix".into())
    }

    pub fn handed_over() -> Result<Vec<Listener>, BoxError> {
        Err("--listen systemd needs Unix".into())
    }
}
