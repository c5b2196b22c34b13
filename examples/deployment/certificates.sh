#!/bin/sh
# Certificates of a federation: sh certificates.sh HOST FOLDER ANALYST...
#
# HOST is the coordinator's name or IP address, as sites and analysts type it. Each
# ANALYST gets a certificate that opens Control. Run it again to add analysts; what is
# there stays, and is named. Keep the folder private.
set -eu
umask 077
[ $# -ge 3 ] || { echo "usage: sh $0 HOST FOLDER ANALYST..." >&2; exit 2; }
host=$1 folder=$2
shift 2
for analyst; do
    case $analyst in
    *[!A-Za-z0-9._-]*) echo "an analyst's name has letters, digits, . _ - only, got: $analyst" >&2; exit 2 ;;
    esac
done
case $host in
*:*) name="IP:$host" ;;
*[!0-9.]*) name="DNS:$host" ;;
*) name="IP:$host" ;;
esac
mkdir -p "$folder"
cd "$folder"
if [ -f server.crt ]; then
    case $name in IP:*) option=-checkip ;; *) option=-checkhost ;; esac
    openssl x509 -in server.crt -noout "$option" "$host" | grep -q "does match" || {
        echo "$folder/server.crt is not for $host; for a new one delete it and server.key" >&2
        exit 2
    }
fi

# An authority signs others: "ca" the server, which sites check, and "analysts-ca" the
# analysts, whom the proxy checks. The second signs nothing that a site ever has.
authority() {
    [ -f "$1.crt" ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-384 \
        -sha384 -days 3650 -noenc -subj "/CN=fedgraph $1" -keyout "$1.key" -out "$1.crt" \
        -addext "keyUsage=critical,keyCertSign,cRLSign"
}

# signed AUTHORITY NAME COMMON-NAME EXTENSION...
signed() {
    by=$1 stem=$2 subject=$3
    shift 3
    if [ -f "$stem.crt" ]; then
        echo "kept $folder/$stem.crt" >&3
        return
    fi
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-384 -noenc -sha384 \
        -subj "/CN=$subject" -keyout "$stem.key" -out "$stem.csr"
    # Python refuses a certificate without key identifiers since its version 3.13.
    printf '%s\n' "basicConstraints=critical,CA:FALSE" "subjectKeyIdentifier=hash" \
        "authorityKeyIdentifier=keyid" "$@" >"$stem.ext"
    openssl x509 -req -in "$stem.csr" -CA "$by.crt" -CAkey "$by.key" -CAcreateserial \
        -days 365 -sha384 -extfile "$stem.ext" -out "$stem.crt"
    rm "$stem.csr" "$stem.ext"
    echo "made $folder/$stem.crt and $folder/$stem.key" >&3
}

exec 3>&1
log=$(mktemp)
trap 'status=$?; [ $status -eq 0 ] || cat "$log" >&2; rm -f "$log"' EXIT
exec >"$log" 2>&1
authority ca
authority analysts-ca
# ServerApps know the SuperLink by 127.0.0.1, and nginx, which compares no addresses, by
# the name.
signed ca server "$host" "extendedKeyUsage=serverAuth" \
    "subjectAltName=$name,IP:127.0.0.1,DNS:fedgraph-superlink"
for analyst; do
    signed analysts-ca "analyst-$analyst" "$analyst" "extendedKeyUsage=clientAuth"
done
