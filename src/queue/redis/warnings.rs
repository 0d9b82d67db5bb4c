//! What of a server's settings puts jobs at risk.

use std::collections::HashMap;

use redis::{Cmd, FromRedisValue, RedisError};

use super::link::Link;

/// Reads the settings, and says what is at risk. What the server does not tell is not warned of.
pub(super) async fn warnings(link: &Link) -> Result<Vec<String>, RedisError> {
    let mut info = Cmd::new();
    info.arg("INFO");
    let info = String::from_redis_value(link.query(&info).await?)?;
    let said =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let mut warnings = Vec::new();
    // Policies named `volatile-…` evict only keys that expire, and a queue has none.
    if let Some(policy) = said("maxmemory_policy").filter(|policy| policy.starts_with("allkeys")) {
        warnings.push(format!(
            "maxmemory-policy is {policy}: jobs are lost when the server is full; set it to noeviction"
        ));
    }
    if said("aof_enabled") == Some("0") {
        let mut config = Cmd::new();
        config.arg("CONFIG").arg("GET").arg("save");
        // Managed servers keep their settings to themselves.
        let save = link.query(&config).await.ok();
        // A list, or with RESP3 a map.
        let save = save.and_then(|save| HashMap::<String, String>::from_redis_value(save).ok());
        warnings.extend(match save.as_ref().and_then(|settings| settings.get("save")) {
            Some(save) if save.is_empty() => Some(
                "appendonly is no and save is empty: all jobs are lost when the server ends; set appendonly to yes"
                    .to_owned(),
            ),
            Some(save) => Some(format!(
                "appendonly is no: what was enqueued since the last snapshot (save {save}) is lost when the server ends; set it to yes"
            )),
            _ => None,
        });
    }
    Ok(warnings)
}
