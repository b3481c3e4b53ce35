//! Which device to use, and how: what a user may want to choose otherwise.
//!
//! Everything has a default that fits a host with one RDMA network. The text form is that of the command line:
//! `device=mlx5_0,port=1,gid=3,mtu=4096`, any of them.

use std::fmt;
use std::str::FromStr;

/// What to use of the RDMA devices of this host.
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
    /// The name of the device; the first one with an active port.
    pub device: Option<String>,
    /// The number of its port, from 1 on; the first active one.
    pub port: Option<u8>,
    /// The index of the GID; the first of RoCE v2 with an IPv4 address, else the first of RoCE v2, else 0.
    pub gid: Option<u8>,
    /// Bytes of payload in a packet, 256 to 4096; what both ports are set to.
    pub mtu: Option<u32>,
}

const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

impl VerbsOptions {
    /// The number that stands for an MTU in verbs, from 1 on.
    #[cfg(feature = "verbs")]
    pub(crate) fn mtu_code(&self) -> Option<u32> {
        let mtu = self.mtu?;
        MTUS.iter().position(|&known| known == mtu).map(|at| at as u32 + 1)
    }
}

impl FromStr for VerbsOptions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut options = Self::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| {
                format!("`{part}` is no option of verbs; they look like device=NAME,port=N,gid=N,mtu=BYTES")
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
                _ => return Err(format!("`{part}`: verbs have the options device, port, gid and mtu")),
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
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_comes_back() {
        for text in ["", "device=rxe0", "port=1,mtu=1024", "device=a,port=2,gid=0,mtu=4096"] {
            assert_eq!(text.parse::<VerbsOptions>().map(|options| options.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (text, reason) in [
            ("rxe0", "`rxe0` is no option of verbs; they look like device=NAME,port=N,gid=N,mtu=BYTES"),
            ("port=300", "port=`300` is no number from 0 to 255"),
            ("mtu=1500", "mtu=`1500` is none of 256, 512, 1024, 2048 and 4096"),
            ("speed=1", "`speed=1`: verbs have the options device, port, gid and mtu"),
            ("device=", "`device=`: verbs have the options device, port, gid and mtu"),
        ] {
            assert_eq!(text.parse::<VerbsOptions>(), Err(reason.to_owned()));
        }
    }
}
