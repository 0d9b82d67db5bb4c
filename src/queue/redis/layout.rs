//! Whose the keys of a queue are, and of which layout.

use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, ServerErrorKind};

use super::OpenError;
use super::link::{Link, Script};

/// The oldest server that has all that the scripts need.
const OLDEST: u32 = 7;

static LAYOUT: Script = Script::new(include_str!("layout.lua"));

/// Makes the keys of `prefix` ours, or says why they cannot be.
///
/// `kind` is one word and tells the kinds of queues apart; `keys` are all keys that such a queue may have, without the prefix, each
/// with its type. What is in order is only read.
pub(super) async fn settle(
    link: &Link,
    prefix: &str,
    kind: &str,
    needed: u32,
    keys: &[(&str, &str)],
) -> Result<(), OpenError> {
    check_version(link).await?;
    let mut call = LAYOUT.on(&[prefix]);
    call.arg(kind).arg(needed).arg("layout").arg("string");
    for (key, is) in keys {
        call.arg(*key).arg(*is);
    }
    let said = link.call(&LAYOUT, &call).await.map_err(OpenError::Server)?;
    let said =
        Vec::<String>::from_redis_value(said).map_err(|error| OpenError::Server(RedisError::from(error)))?;
    let said: Vec<&str> = said.iter().map(String::as_str).collect();
    let foreign = |key: &str, found: String| Err(OpenError::Foreign { key: key.to_owned(), found });
    match said[..] {
        ["type", key, is, should] => foreign(key, format!("it is a {is}, and should be a {should}")),
        ["unnamed", key] => foreign(key, "it is there, and no key says of which layout it is".to_owned()),
        ["layout", layout] => {
            let key = format!("{prefix}layout");
            let number = layout.strip_prefix("winddown ").and_then(|rest| rest.strip_prefix(kind));
            match number.and_then(|number| number.trim_start().parse::<u32>().ok()) {
                Some(found) if found == needed => Ok(()),
                Some(found) => Err(OpenError::Layout { key, found, needed }),
                None => {
                    let found: String = layout.chars().take(64).collect();
                    foreign(&key, format!("it says {found:?}, and should say \"winddown {kind} {needed}\""))
                }
            }
        }
        _ => Err(OpenError::Server(
            (ErrorKind::UnexpectedReturnType, "the script did not answer as it should").into(),
        )),
    }
}

async fn check_version(link: &Link) -> Result<(), OpenError> {
    let mut info = Cmd::new();
    info.arg("INFO").arg("server");
    let text = match link.query(&info).await {
        Ok(text) => text,
        // Who may not ask finds out by the first script.
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => return Ok(()),
        Err(error) => return Err(OpenError::Server(error)),
    };
    let text = String::from_redis_value(text).map_err(|error| OpenError::Server(RedisError::from(error)))?;
    let version =
        text.lines().find_map(|line| line.strip_prefix("redis_version:")).unwrap_or("unknown").trim();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    match major {
        Some(major) if major < OLDEST => {
            Err(OpenError::Version { found: version.to_owned(), needed: OLDEST })
        }
        _ => Ok(()),
    }
}
