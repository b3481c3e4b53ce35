# Sourced. The packages with optional features, with all of these features but Parquet: RDMA, Arrow, object stores, a
# model of lost power, and the defects that tests find. One selection for all steps, so that it is built once.

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    # For the binding to RDMA.
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends cmake clang libclang-dev >/dev/null
fi

optional=(-p pando -p pando-cli -p pando-fabric-verbs)
features=pando-cli/verbs,pando-cli/object-store,pando/object-store,pando-cli/arrow,pando/arrow,pando/power,pando/defects,pando-fabric-verbs/verbs
for crate in lab pool log member replica elf elf-remote dex sherman smart; do
    optional+=(-p "pando-$crate")
    features+=,pando-$crate/defects
done
optional+=(--no-default-features --features "$features")
