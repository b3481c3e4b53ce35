//! Clusters of the papers: one file of the model's parameters for each.
//!
//! `crates/lab/clusters` has the files; `pando bench --cluster FILE` takes them, too. A file states the source
//! of a number beside it, and in `[fitted]` which numbers were fitted, and to what.

use pando_sim::Model;

/// A cluster of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// Name of the file, without its extension.
    pub name: &'static str,
    text: &'static str,
}

impl Cluster {
    pub(super) const DEX: Self = Self { name: "dex", text: include_str!("../../clusters/dex.toml") };
    pub(super) const SHERMAN: Self =
        Self { name: "sherman", text: include_str!("../../clusters/sherman.toml") };
    pub(super) const SMART: Self = Self { name: "smart", text: include_str!("../../clusters/smart.toml") };

    pub(super) fn model(&self) -> Model {
        Model::from_toml(self.text).expect("a file of the laboratory is a model")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::all;

    #[test]
    fn the_default_cluster_is_the_one_of_dex() {
        assert_eq!(Cluster::DEX.model(), Model::default());
    }

    #[test]
    fn experiments_name_no_parameter_as_fitted_that_their_cluster_has_not() {
        for experiment in all() {
            let fitted = experiment.cluster.map(|cluster| cluster.model().fitted).unwrap_or_default();
            for name in experiment.fitted {
                assert!(fitted.contains_key(*name), "{}: {name}", experiment.name);
            }
        }
    }
}
