#!/bin/sh
# Install the wheels of a folder into a new virtual environment: install.sh ENVIRONMENT WHEELS
#
# DEVICE, TORCH_INDEX and EXTRAS are said in the Dockerfile. `constraints` lies beside the folder of
# wheels, or where CONSTRAINTS says.
set -eu

environment=$1
wheels=$2
constraints=${CONSTRAINTS:-$(dirname "$wheels")/constraints}

extras=serve
set --
case ${DEVICE:-cpu} in
  cpu) set -- --constraint "$constraints/torch-cpu.txt" ;;
  cuda) extras=$extras,cuda ;;
  *) echo "DEVICE=$DEVICE is not allowed: cpu or cuda" >&2; exit 1 ;;
esac
extras=$extras${EXTRAS:+,$EXTRAS}

python3 -m venv "$environment"
pip="$environment/bin/python -m pip install --no-cache-dir --disable-pip-version-check"

# Our names are tied to the files in the folder, whatever an index may have under the same names.
ties=$(mktemp)
for wheel in "$wheels"/pegboard_*.whl; do
  name=$(basename "$wheel" | cut -d- -f1)
  echo "$name @ file://$wheel"
done > "$ties"

# Torch alone first, so that its index touches nothing else.
torch=$("$environment/bin/python" -c '
import glob, re, sys, zipfile
archive = zipfile.ZipFile(glob.glob(sys.argv[1] + "/pegboard_core-*.whl")[0])
name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
print(re.search(r"^Requires-Dist: (torch[<>=!~].*)$", archive.read(name).decode(), re.M)[1])
' "$wheels")
$pip "$@" ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "$torch"
set -- "$@" --constraint "$ties"
for wheel in "$wheels"/pegboard-*.whl; do
  $pip "$@" "pegboard[$extras] @ file://$wheel"
done
rm "$ties"
"$environment/bin/pegboard" plugins list
