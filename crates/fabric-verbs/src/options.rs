//! User options of the choice and use of RDMA devices.
//!
//! Every option has a default that fits a host with one RDMA network. The text form is that of the command
//! line: `device=mlx5_0,port=1,gid=3,mtu=4096,timeout=15`, any subset.

use std::fmt;
use std::str::FromStr;

/// Choice of the RDMA device of this host and its parameters.
///
/// ```
/// use pando_fabric_verbs::VerbsOptions;
///
/// let options: VerbsOptions = "device=mlx5_0,mtu=4096".parse()?;
/// assert_eq!((options.device.as_deref(), options.port, options.mtu), (Some("mlx5_0"), None, Some(4096)));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsOptions {
    /// Name of the device. Default: the first one with an active port.
    pub device: Option<String>,
    /// Number of its port, from 1 on. Default: the first active one.
    pub port: Option<u8>,
    /// Index of the GID. Default: the first of RoCE v2 with an IPv4 address, otherwise the first of RoCE v2,
    /// otherwise 0.
    pub gid: Option<u8>,
    /// Bytes of payload per packet, 256 to 4096. Default: the active MTU of the ports.
    pub mtu: Option<u32>,
    /// An unacknowledged packet is sent again after 4.096 µs × 2^`timeout`, six times; 1 to 31. Default: 13.
    pub timeout: Option<u8>,
}

const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];
/// 34 ms, so that a dead peer is detected after a quarter of a second.
#[cfg(feature = "verbs")]
const TIMEOUT: u8 = 13;

impl VerbsOptions {
    /// Code of the MTU in verbs, from 1 on.
    #[cfg(feature = "verbs")]
    pub(crate) fn mtu_code(&self) -> Option<u32> {
        let mtu = self.mtu?;
        MTUS.iter().position(|&known| known == mtu).map(|at| at as u32 + 1)
    }

    /// The local ACK timeout of verbs.
    #[cfg(feature = "verbs")]
    pub(crate) fn timeout_code(&self) -> u8 {
        self.timeout.unwrap_or(TIMEOUT)
    }
}

impl FromStr for VerbsOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| {
                format!("`{part}` is no option of verbs; they look like device=NAME,port=N,gid=N,mtu=BYTES,timeout=N")
            })?;
            let number =
                || value.parse::<u8>().map_err(|_| format!("{name}=`{value}` is no number from 0 to 255"));
            match name {
                "device" if !value.is_empty() => options.device = Some(value.to_owned()),
                "port" => options.port = Some(number()?),
                "gid" => options.gid = Some(number()?),
                "mtu" => match value.parse().ok().filter(|mtu| MTUS.contains(mtu)) {
                    Some(mtu) => options.mtu = Some(mtu),
                    None => return Err(format!("mtu=`{value}` is none of 256, 512, 1024, 2048 and 4096")),
                },
                // 0 would mean no timeout.
                "timeout" => match number().ok().filter(|timeout| (1..=31).contains(timeout)) {
                    Some(timeout) => options.timeout = Some(timeout),
                    None => return Err(format!("timeout=`{value}` is no number from 1 to 31")),
                },
                _ => {
                    return Err(format!(
                        "`{part}`: verbs have the options device, port, gid, mtu and timeout"
                    ));
                }
            }
        }
        Ok(options)
    }
}

impl fmt::Display for VerbsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.device.as_ref().map(|device| format!("device={device}")),
            self.port.map(|port| format!("port={port}")),
            self.gid.map(|gid| format!("gid={gid}")),
            self.mtu.map(|mtu| format!("mtu={mtu}")),
            self.timeout.map(|timeout| format!("timeout={timeout}")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_comes_back() {
        for text in ["", "device=rxe0", "port=1,mtu=1024", "device=a,port=2,gid=0,mtu=4096,timeout=20"] {
            assert_eq!(text.parse::<VerbsOptions>().map(|options| options.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (text, reason) in [
            (
                "rxe0",
                "`rxe0` is no option of verbs; they look like device=NAME,port=N,gid=N,mtu=BYTES,timeout=N",
            ),
            ("port=300", "port=`300` is no number from 0 to 255"),
            ("mtu=1500", "mtu=`1500` is none of 256, 512, 1024, 2048 and 4096"),
            ("timeout=0", "timeout=`0` is no number from 1 to 31"),
            ("timeout=1s", "timeout=`1s` is no number from 1 to 31"),
            ("speed=1", "`speed=1`: verbs have the options device, port, gid, mtu and timeout"),
            ("device=", "`device=`: verbs have the options device, port, gid, mtu and timeout"),
        ] {
            assert_eq!(text.parse::<VerbsOptions>(), Err(reason.to_owned()));
        }
    }
}
