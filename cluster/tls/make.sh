#!/usr/bin/env bash
# Create a certificate authority and one certificate for scheduler, workers and clients.
#   bash make.sh FOLDER HOST...      names or addresses of all hosts of the cluster
set -euo pipefail
umask 077
folder=${1:?usage: make.sh FOLDER HOST...}
shift
mkdir -p "$folder"
for file in ca.key ca.pem dmo.key dmo.pem; do
  if [ -e "$folder/$file" ]; then echo "make.sh: $folder/$file exists; choose another folder" >&2; exit 2; fi
done

names="DNS:localhost,IP:127.0.0.1"
for host in "$@"; do
  if [[ $host =~ ^[0-9.]+$ || $host == *:* ]]; then names="$names,IP:$host"; else names="$names,DNS:$host"; fi
done

openssl req -x509 -newkey rsa:3072 -nodes -days 3650 -subj "/CN=dmo authority" \
  -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign,cRLSign" \
  -keyout "$folder/ca.key" -out "$folder/ca.pem" 2>/dev/null
openssl req -newkey rsa:3072 -nodes -subj "/CN=dmo cluster" -keyout "$folder/dmo.key" -out "$folder/dmo.csr" 2>/dev/null
printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\nbasicConstraints=CA:FALSE\n' "$names" > "$folder/dmo.ext"
openssl x509 -req -in "$folder/dmo.csr" -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -CAcreateserial -days 365 \
  -extfile "$folder/dmo.ext" -out "$folder/dmo.pem" 2>/dev/null
rm "$folder/dmo.csr" "$folder/dmo.ext"
openssl verify -CAfile "$folder/ca.pem" "$folder/dmo.pem" >/dev/null
echo "created $folder/ca.pem, dmo.pem and dmo.key; do not copy ca.key to the cluster"
